// For tests under mpirun: a program with an MPI of its own, as `mpicc` would make
// it. Only one MPI's headers can be included, and these programs run under each: its functions are
// looked up in the library, which the plug-in has loaded.
#pragma once

#include <dlfcn.h>
#include <troika/comm/mpi/library.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace troika::test {

class OwnMpi {
 public:
  enum class Threads { kOne, kAll };
  explicit OwnMpi(Threads threads = Threads::kOne)
      : is_open_mpi_(*mpi::flavour_of_process() == "openmpi") {
    (void)mpi::plugin();
    int provided = 0;  // MPI_THREAD_MULTIPLE and _SINGLE are 3 and 0 in both
    call<int(int*, char***, int, int*)>("MPI_Init_thread")(
        nullptr, nullptr, threads == Threads::kAll ? 3 : 0, &provided);
  }
  ~OwnMpi() { finalize(); }
  OwnMpi(const OwnMpi&) = delete;
  OwnMpi& operator=(const OwnMpi&) = delete;

  void finalize() {
    if (!std::exchange(is_finalized_, true)) call<int()>("MPI_Finalize")();
  }

  // MPI_Comm_c2f(MPI_COMM_WORLD), by the headers of each.
  [[nodiscard]] int world() const { return is_open_mpi_ ? 0 : 0x44000000; }
  // MPI_Comm_split of MPI_COMM_WORLD, as Fortran programs have the result.
  [[nodiscard]] int split(int color, int key) const {
    if (!is_open_mpi_) {  // handles are the same in C
      int part = 0;
      call<int(int, int, int, int*)>("MPI_Comm_split")(world(), color, key, &part);
      return part;
    }
    void* part = nullptr;
    void* const whole = call<void*(int)>("MPI_Comm_f2c")(world());
    call<int(void*, int, int, void**)>("MPI_Comm_split")(whole, color, key, &part);
    return call<int(void*)>("MPI_Comm_c2f")(part);
  }

  // Return what the program does about MPI's errors on MPI_COMM_WORLD and MPI_COMM_SELF, to be
  // compared.
  using ErrorHandlers = std::array<std::uintptr_t, 2>;
  [[nodiscard]] ErrorHandlers error_handlers() const {
    return {error_handler(world()), error_handler(world() + 1)};
  }
  // Sets a handler of the program's own for both, which counts in handled_errors().
  void handle_errors() {
    std::uintptr_t handler = 0;  // an int, or a pointer
    call<int(void (*)(void*, int*, ...), std::uintptr_t*)>("MPI_Comm_create_errhandler")(
        count_error, &handler);
    for (const int each : {world(), world() + 1}) {
      call<int(std::uintptr_t, std::uintptr_t)>("MPI_Comm_set_errhandler")(handle_of(each),
                                                                           handler);
    }
  }
  static int& handled_errors() {
    static int count = 0;
    return count;
  }

 private:
  // NOLINTNEXTLINE(cert-dcl50-cpp): as MPI has it
  static void count_error(void* /*communicator*/, int* /*code*/, ...) { ++handled_errors(); }
  // A communicator as C has it. A function that takes an int reads the lower half.
  [[nodiscard]] std::uintptr_t handle_of(int fortran_handle) const {
    if (!is_open_mpi_) return static_cast<unsigned>(fortran_handle);
    return call<std::uintptr_t(int)>("MPI_Comm_f2c")(fortran_handle);
  }
  [[nodiscard]] std::uintptr_t error_handler(int fortran_handle) const {
    std::uintptr_t handler = 0;
    call<int(std::uintptr_t, std::uintptr_t*)>("MPI_Comm_get_errhandler")(handle_of(fortran_handle),
                                                                          &handler);
    const std::uintptr_t found = handler;
    call<int(std::uintptr_t*)>("MPI_Errhandler_free")(&handler);
    return found;
  }
  template <class Function>
  static Function* call(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }

  bool is_open_mpi_;
  bool is_finalized_ = false;
};

}  // namespace troika::test
