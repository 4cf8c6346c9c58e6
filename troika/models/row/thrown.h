// Tells what code of a plug-in throws: its own exceptions are no bugs of troika. Internal to this
// folder.
#pragma once

#include <c10/util/Exception.h>
#include <troika/base/error.h>

#include <exception>
#include <string>

namespace troika {

// Returns one line on the exception that is being handled.
inline std::string line_of_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return text.substr(0, text.find('\n'));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  } catch (...) {
    return "no std::exception";
  }
}

// Returns what `call` does. Lets errors of troika and of LibTorch pass; any other exception becomes
// a UsageError: "WHAT throws: its first line".
template <class Call>
auto naming_the_thrower(const std::string& what, const Call& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const c10::Error&) {
    throw;
  } catch (...) {
    throw UsageError(what + " throws: " + line_of_exception());
  }
}

}  // namespace troika
