#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file_identity.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/device/device.h>
#include <troika/rendezvous/endpoint.h>
#include <troika/session/consensus.h>
#include <troika/session/rank_name.h>
#include <troika/session/source_agreement.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

namespace troika {
namespace {

using Parts = std::vector<SourcePart>;

// A line a part: 16 digits, a space, the name.
std::string encode(const Parts& parts) {
  std::string text;
  for (const SourcePart& each : parts) text += hex(each.digest) + " " + each.name + "\n";
  return text;
}

// By name, in the order of the text.
std::vector<std::pair<std::string, std::string>> decode(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> parts;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.size() < 17) continue;
    parts.emplace_back(line.substr(17), line.substr(0, 16));
  }
  return parts;
}

// The first part that is not in both texts with one digest; nothing where there is none, or a side
// could not tell its parts.
std::optional<std::string> first_differing(const std::string& ours, const std::string& theirs) {
  if (ours.empty() || theirs.empty()) return std::nullopt;
  const auto own = decode(ours), other = decode(theirs);
  const std::map<std::string, std::string> own_digests(own.begin(), own.end()),
      other_digests(other.begin(), other.end());
  for (const auto& [name, digest] : own) {
    const auto found = other_digests.find(name);
    if (found == other_digests.end() || found->second != digest) return name;
  }
  for (const auto& [name, digest] : other) {
    if (!own_digests.contains(name)) return name;
  }
  return std::nullopt;
}

// One comparison of all sources.
class Comparison {
 public:
  Comparison(const Session& session, std::span<const SharedSource> sources,
             const SourceAgreement& agreement)
      : session_(session), sources_(sources), agreement_(agreement) {}

  void run() {
    find_readers();
    // Who reads the same file cannot differ, and one rank a source means that all do.
    if (std::ranges::all_of(readers_, [](const auto& by_rank) {
          return std::ranges::all_of(by_rank, [](int rank) { return rank == 0; });
        })) {
      return;
    }
    std::vector<std::string> digests(sources_.size());
    const std::optional<Failure> failure = failure_in([&] {
      for (std::size_t i = 0; i < sources_.size(); ++i) {
        if (reads(i)) digests[i] = hex(content_hash(encode(own_parts(i))));
      }
    });
    wait();
    throw_on_all_ranks(session_, failure, agreement_.label, NameRanks::kUnlessAll);
    for (std::size_t i = 0; i < sources_.size(); ++i) compare(i, digests[i]);
  }

 private:
  // Notes for each source and rank the first rank that sees the same file.
  void find_readers() {
    wait();
    for (const SharedSource& source : sources_) {
      std::string own = identity_of_file(source.path);
      if (own.empty()) own = "rank " + std::to_string(session_.rank());
      const std::vector<std::string> all = session_.gather(own, agreement_.label);
      std::vector<int> readers;
      for (const std::string& each : all) {
        readers.push_back(static_cast<int>(std::ranges::find(all, each) - all.begin()));
      }
      readers_.push_back(std::move(readers));
    }
  }

  [[nodiscard]] bool reads(std::size_t source) const {
    return readers_[source][static_cast<std::size_t>(session_.rank())] == session_.rank();
  }

  const Parts& own_parts(std::size_t source) {
    Parts& parts = parts_.try_emplace(source).first->second;
    if (parts.empty()) parts = sources_[source].parts();
    return parts;
  }

  void compare(std::size_t source, const std::string& digest) {
    const std::vector<std::string> all = session_.gather(digest, agreement_.label);
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (!all[rank].empty() && all[rank] != all[0]) refuse(source, static_cast<int>(rank));
    }
  }

  // Collective: the parts tell where the two differ.
  [[noreturn]] void refuse(std::size_t source, int rank) {
    const SharedSource& one = sources_[source];
    const bool speaks = session_.rank() == 0 || session_.rank() == rank;
    std::optional<std::string> part;
    std::string hint = agreement_.hint;
    if (one.details) {
      const Texts details = exchange(rank, [&] { return speaks ? one.details() : Parts(); });
      part = first_differing(details.first, details.other);
      const bool are_equal = !details.first.empty() && details.first == details.other;
      if (are_equal && !one.hint_if_details_are_equal.empty()) hint = one.hint_if_details_are_equal;
    }
    if (!part) {
      const Texts parts = exchange(rank, [&] { return speaks ? own_parts(source) : Parts(); });
      part = first_differing(parts.first, parts.other);
    }
    std::string message = one.title + " differs between " + name_of_rank(0, session_.members()) +
                          " and " + name_of_rank(rank, session_.members());
    if (part && !part->empty()) message += ", first in " + *part;
    throw DataError(message, hint);
  }

  // The parts of rank 0 and of another rank; empty where a rank cannot tell its own.
  struct Texts {
    std::string first, other;
  };
  template <class Read>
  Texts exchange(int rank, const Read& read) {
    // What cannot be told in detail differs all the same.
    std::string own;
    static_cast<void>(failure_in([&] { own = encode(read()); }));
    wait();
    const std::vector<std::string> all = session_.gather(own, agreement_.label);
    return {all[0], all[static_cast<std::size_t>(rank)]};
  }

  // Ranks come when they have read.
  void wait() const {
    session_.world().barrier({agreement_.label, Deadline::in(agreement_.patience)}).wait();
  }

  const Session& session_;
  std::span<const SharedSource> sources_;
  const SourceAgreement& agreement_;
  std::vector<std::vector<int>> readers_;  // by source, by rank
  std::map<std::size_t, Parts> parts_;     // of this rank, by source
};

}  // namespace

void agree_on_sources(const Session& session, std::span<const SharedSource> sources,
                      const SourceAgreement& agreement) {
  if (session.size() == 1 || sources.empty()) return;
  Comparison(session, sources, agreement).run();
}

SourcePart tensor_part(std::string_view name, const at::Tensor& tensor) {
  const at::Tensor values = to_host(tensor.detach()).contiguous();
  std::ostringstream kind;
  kind << values.scalar_type() << " " << values.sizes() << "\n";
  ContentHash hash;
  hash.update(kind.str());
  hash.update({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  return {"tensor " + quote(name, 200), hash.digest()};
}

std::string identity_of_file(const std::filesystem::path& path) {
  const auto found = FileIdentity::of(path);
  if (!found) return {};
  return host_identity() + " " + found->file() + " " + found->version();
}

}  // namespace troika
