#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/capi/model_agreement.h>
#include <troika/device/device.h>
#include <troika/session/consensus.h>

#include <sstream>
#include <string>

namespace troika {
namespace {

void hash_tensor(ContentHash& hash, const std::string& name, const at::Tensor& tensor) {
  const at::Tensor values = to_host(tensor).contiguous();
  std::ostringstream title;
  title << name << " " << values.sizes() << " " << values.scalar_type() << "\n";
  hash.update(title.str());
  hash.update({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
}

// Returns the first line of `own` that is another in `other`.
std::string differing_line(const std::string& own, const std::string& other) {
  std::istringstream these(own), those(other);
  std::string mine, theirs;
  while (std::getline(these, mine) && std::getline(those, theirs) && mine == theirs) {
  }
  return mine.substr(0, mine.rfind(' '));
}

// Returns a line for each file of the model, and one for its values.
std::string fingerprint(const ModelOptions& model, const std::vector<NamedTensor>& values) {
  std::ostringstream text;
  for (const auto& file : model.kind().files(model.options())) {
    text << shown_path(file) << " " << hex(content_hash(MappedFile(file).bytes())) << "\n";
  }
  ContentHash hash;
  for (const NamedTensor& each : values) hash_tensor(hash, each.name, each.tensor);
  text << "the initial values " << hex(hash.digest()) << "\n";
  return text.str();
}

}  // namespace

void agree_on_model(const Session& session, const ModelOptions& model,
                    const std::vector<NamedTensor>& values) {
  if (session.size() == 1) return;
  constexpr std::string_view kLabel = "fingerprint of a model";
  std::string own;
  run_on_all_ranks(
      session, [&] { own = fingerprint(model, values); }, kLabel, NameRanks::kUnlessAll);
  const auto difference = find_difference(session, own, kLabel);
  if (!difference) return;
  throw UsageError("the ranks have different models: rank 0 and " +
                       ranks_in_words(difference->theirs.ranks) + " differ in " +
                       differing_line(difference->of_rank_zero, difference->theirs.text),
                   "give all ranks the same file, or library");
}

}  // namespace troika
