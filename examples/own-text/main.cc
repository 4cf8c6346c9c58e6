// Text from the model of a run, in a program of your own: what `troika generate` does.
//
//   own_text runs/quickstart 'template<typename _Tp>'
#include <troika/base/error.h>
#include <troika/inference/generate.h>

#include <iostream>
#include <string>

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw troika::UsageError("own_text RUN PROMPT");
    const troika::Generator model(argv[1]);
    troika::SamplingOptions options;
    options.tokens = 100;
    options.temperature = 0.8;
    model.generate(argv[2], options,
                   [](std::string_view text) { std::cout << text << std::flush; });
    std::cout << std::endl;
  } catch (const troika::Error& error) {
    std::cerr << "own_text: " << error.what() << std::endl;
    if (!error.hint().empty()) std::cerr << "hint: " << error.hint() << std::endl;
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "own_text: " << error.what() << std::endl;
    return 1;
  }
}
