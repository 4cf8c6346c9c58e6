// Compiled once for each MPI, against its headers. All names but the entry are hidden, since a
// second plug-in defines the same ones.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <troika/base/failure_timing.h>
#include <troika/comm/mpi/plugin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <string_view>
#include <thread>
#include <vector>

namespace troika::mpi {
namespace {

// Counts are int: what is longer goes in pieces.
constexpr std::size_t kPiece = std::size_t{1} << 30;

// The first line. MPICH goes on with the stack of its own functions.
std::string text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) return "unknown error";
  std::string_view all(text.data(), static_cast<std::size_t>(length));
  all = all.substr(0, all.find('\n'));
  return std::string(all.substr(0, all.find(", error stack:")));
}

void must(int code, const char* call) {
  if (code != MPI_SUCCESS) throw MpiError(std::string(call) + ": " + text_of(code));
}

// Whether the end of the process may wait for the others. MPI itself is one for each process.
std::atomic<bool> g_failed = false;

// Set when the program has begun to end MPI, or to be ended: no thread of ours calls MPI any more.
// Whoever does so beside the program's own threads holds the mutex.
std::atomic<bool> g_ending = false;
std::mutex g_calling;

bool has_ended() {
  if (g_ending) return true;
  int finalized = 0;
  return MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0;
}

// A call of MPI after its end ends the program.
void must_run() {
  if (has_ended()) throw MpiEnded("the program has ended MPI already (MPI_Finalize)");
}

// MPI_Finalize first deletes the attributes of MPI_COMM_SELF (MPI 3.1, section 8.7.1). Sessions
// that the program has not closed by then end without MPI.
int on_finalize(MPI_Comm, int, void*, void*) {
  const std::lock_guard lock(g_calling);
  g_ending = true;
  return MPI_SUCCESS;
}

void watch_for_the_end() {
  static std::once_flag once;
  std::call_once(once, [] {
    int key = MPI_KEYVAL_INVALID;
    must(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_finalize, &key, nullptr),
         "MPI_Comm_create_keyval");
    must(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
    MPI_Comm_free_keyval(&key);  // goes when the attribute does
  });
}

#ifdef MPICH_VERSION
// MPICH 4.0 between hosts, over UCX and TCP, can wait in MPI_Finalize for ever when members close
// connections that were in use a moment ago: one that is through waits for the others without
// answering them any more (pmodels/mpich#6596, openucx/ucx#8738). A pause before it avoids that,
// and one of 50 ms not always.
void let_connections_come_to_rest() {
  MPI_Barrier(MPI_COMM_WORLD);
  std::this_thread::sleep_for(failure_timing::kMpiFinalizePause);
}
#else
void let_connections_come_to_rest() {}
#endif

void finalize_at_exit() {
  if (has_ended() || g_failed) return;
  let_connections_come_to_rest();
  MPI_Finalize();
}

class Requests final : public Request {
 public:
  // The next piece; one that is received must have `expected` bytes.
  MPI_Request* add(int expected = -1) {
    return &pieces_.emplace_back(Piece{MPI_REQUEST_NULL, expected}).request;
  }

  bool test() override {
    if (next_ < pieces_.size()) must_run();
    for (; next_ < pieces_.size(); ++next_) {
      Piece& piece = pieces_[next_];
      int done = 0;
      MPI_Status status;
      const int code = MPI_Test(&piece.request, &done, &status);
      if (is_too_long(code)) {
        throw WrongSize("sends more than the " + std::to_string(piece.expected) +
                        " B that are expected");
      }
      must(code, "MPI_Test");
      if (done == 0) return false;
      if (piece.expected >= 0) check_size(status, piece.expected);
    }
    return true;
  }
  void cancel() override {
    must_run();
    for (Piece& piece : pieces_) {
      piece.expected = -1;
      if (piece.request != MPI_REQUEST_NULL) must(MPI_Cancel(&piece.request), "MPI_Cancel");
    }
  }

 private:
  struct Piece {
    MPI_Request request;
    int expected;
  };
  static bool is_too_long(int code) {
    int kind = MPI_SUCCESS;
    return code != MPI_SUCCESS && MPI_Error_class(code, &kind) == MPI_SUCCESS &&
           kind == MPI_ERR_TRUNCATE;
  }
  // MPI takes a message that is shorter than the memory for it, without a word.
  static void check_size(const MPI_Status& status, int expected) {
    int size = 0;
    must(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
    if (size == expected) return;
    throw WrongSize("sends " + std::to_string(size) + " B where " + std::to_string(expected) +
                    " B are expected");
  }

  std::vector<Piece> pieces_;
  std::size_t next_ = 0;
};

// A member's message that it is here, to all others. It is the one of scatterv: its receivers do
// not know what the others get, so the root sends to each, and nobody waits for a third.
class Arrival final : public Request {
 public:
  Arrival(int root, int rank, int size, MPI_Comm communicator)
      : bytes_(static_cast<std::size_t>(size)), counts_(bytes_.size(), 1), places_(bytes_.size()) {
    std::iota(places_.begin(), places_.end(), 0);
    const bool sends = root == rank;
    must(MPI_Iscatterv(bytes_.data(), counts_.data(), places_.data(), MPI_BYTE,
                       sends ? MPI_IN_PLACE : &received_, 1, MPI_BYTE, root, communicator,
                       requests_.add()),
         "MPI_Iscatterv");
  }
  bool test() override { return requests_.test(); }
  void cancel() override {}  // MPI cancels no collective

 private:
  std::vector<std::byte> bytes_;
  std::vector<int> counts_, places_;
  std::byte received_{};
  Requests requests_;
};

class PluginCommunicator final : public Communicator {
 public:
  enum class Owned { kByThis, kByProgram };
  PluginCommunicator(MPI_Comm communicator, Owned owned)
      : communicator_(communicator), kept_(owned == Owned::kByProgram) {
    watch_for_the_end();
    // The program's communicator keeps its own way with errors.
    if (!kept_) {
      must(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    must(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
    must(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
    void* limit = nullptr;
    int found = 0;
    // Communicators that are part of another need not have it; the world's holds for all.
    must(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&limit), &found),
         "MPI_Comm_get_attr");
    if (found == 0 || *static_cast<int*>(limit) < kTags - 1) {
      throw MpiError("this MPI has too few tags (MPI_TAG_UB)");
    }
  }
  ~PluginCommunicator() override {
    if (!kept_ && !has_ended()) MPI_Comm_free(&communicator_);
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  std::unique_ptr<Request> send(const void* bytes, std::size_t size, int peer, int tag) override {
    must_run();
    auto requests = std::make_unique<Requests>();
    for_each_piece(size, [&](std::size_t start, int count) {
      must(MPI_Isend(static_cast<const std::byte*>(bytes) + start, count, MPI_BYTE, peer, tag,
                     communicator_, requests->add()),
           "MPI_Isend");
    });
    return requests;
  }

  std::unique_ptr<Request> receive(void* bytes, std::size_t size, int peer, int tag) override {
    must_run();
    auto requests = std::make_unique<Requests>();
    for_each_piece(size, [&](std::size_t start, int count) {
      must(MPI_Irecv(static_cast<std::byte*>(bytes) + start, count, MPI_BYTE, peer, tag,
                     communicator_, requests->add(count)),
           "MPI_Irecv");
    });
    return requests;
  }

  int sender_of(int tag) override {
    must_run();
    int found = 0;
    MPI_Status status;
    must(MPI_Iprobe(MPI_ANY_SOURCE, tag, communicator_, &found, &status), "MPI_Iprobe");
    return found != 0 ? status.MPI_SOURCE : -1;
  }

  std::unique_ptr<Request> all_gather(void* output, const void* input, std::size_t size) override {
    must_run();
    if (size > kPiece) throw MpiError("all_gather of more than 1 GiB");
    const int count = static_cast<int>(size);
    auto requests = std::make_unique<Requests>();
    must(MPI_Iallgather(input, count, MPI_BYTE, output, count, MPI_BYTE, communicator_,
                        requests->add()),
         "MPI_Iallgather");
    return requests;
  }

  std::vector<std::unique_ptr<Request>> roll_call() override {
    must_run();
    std::vector<std::unique_ptr<Request>> arrivals;
    for (int member = 0; member < size_; ++member) {
      arrivals.push_back(std::make_unique<Arrival>(member, rank_, size_, communicator_));
    }
    return arrivals;
  }

  void keep() noexcept override {
    kept_ = true;
    g_failed = true;
  }

 private:
  template <class Start>
  static void for_each_piece(std::size_t bytes, const Start& start) {
    for (std::size_t done = 0; done < bytes; done += kPiece) {
      start(done, static_cast<int>(std::min(kPiece, bytes - done)));
    }
  }

  MPI_Comm communicator_;
  int rank_ = 0;
  int size_ = 0;
  std::atomic<bool> kept_;
};

class PluginOfThisMpi final : public MpiPlugin {
 public:
  [[nodiscard]] std::string library() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    must(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
    const std::string_view all(text.data(), static_cast<std::size_t>(length));
    std::string first(all.substr(0, all.find_first_of(",\n")));
    std::replace(first.begin(), first.end(), '\t', ' ');
    return first.substr(0, first.find_last_not_of(' ') + 1);
  }

  [[nodiscard]] bool started() const override {
    int initialized = 0, finalized = 0;
    must(MPI_Initialized(&initialized), "MPI_Initialized");
    must(MPI_Finalized(&finalized), "MPI_Finalized");
    if (finalized != 0) must_run();
    return initialized != 0;
  }

  void start() override {
    if (started()) return;
    int provided = 0;
    must(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    for (const MPI_Comm each : {MPI_COMM_WORLD, MPI_COMM_SELF}) {
      must(MPI_Comm_set_errhandler(each, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    if (std::atexit(finalize_at_exit) != 0) throw MpiError("atexit has no room");
  }

  [[nodiscard]] Threads threads() const override {
    int provided = 0;
    must(MPI_Query_thread(&provided), "MPI_Query_thread");
    if (provided == MPI_THREAD_MULTIPLE) return Threads::kAll;
    return provided == MPI_THREAD_SERIALIZED ? Threads::kOneAtATime : Threads::kOneOnly;
  }

  bool progress() noexcept override {
    const std::lock_guard lock(g_calling);
    if (has_ended()) return false;
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
    return true;
  }

  [[nodiscard]] int rank() const override {
    int rank = 0;
    must(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    return rank;
  }
  [[nodiscard]] int size() const override {
    int size = 0;
    must(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    return size;
  }

  std::unique_ptr<Communicator> communicator_of(std::span<const int> ranks) override {
    MPI_Group world{}, members{};
    must(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    must(MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &members),
         "MPI_Group_incl");
    MPI_Comm made{};
    const int code = MPI_Comm_create_group(MPI_COMM_WORLD, members, 0, &made);
    MPI_Group_free(&members);
    MPI_Group_free(&world);
    must(code, "MPI_Comm_create_group");
    return std::make_unique<PluginCommunicator>(made, PluginCommunicator::Owned::kByThis);
  }

  std::unique_ptr<Communicator> of_program(int fortran_handle) override {
    const MPI_Comm theirs = MPI_Comm_f2c(static_cast<MPI_Fint>(fortran_handle));
    if (theirs == MPI_COMM_NULL) throw MpiError("the communicator is MPI_COMM_NULL");
    // An invalid handle is told by this first call, through the program's error handler of the
    // world: which would end the program.
    MPI_Errhandler handler{};
    must(MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler), "MPI_Comm_get_errhandler");
    must(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int between = 0;
    const int code = MPI_Comm_test_inter(theirs, &between);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    MPI_Errhandler_free(&handler);
    must(code, "MPI_Comm_test_inter");
    if (between != 0) throw MpiError("the communicator is an inter-communicator");
    return std::make_unique<PluginCommunicator>(theirs, PluginCommunicator::Owned::kByProgram);
  }
};

}  // namespace
}  // namespace troika::mpi

extern "C" __attribute__((visibility("default"))) troika::mpi::MpiPlugin* troika_mpi_plugin(
    int version) {
  static troika::mpi::PluginOfThisMpi plugin;
  return version == troika::mpi::kPluginVersion ? &plugin : nullptr;
}
