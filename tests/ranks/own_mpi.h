// For tests under mpirun: a program with an MPI of its own, as `mpicc` would make
// it. Only one MPI's headers can be included, and these programs run under each: its functions are
// looked up in the library, which the plug-in has loaded.
#pragma once

#include <dlfcn.h>
#include <troika/comm/mpi/library.h>

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

 private:
  template <class Function>
  static Function* call(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }

  bool is_open_mpi_;
  bool is_finalized_ = false;
};

}  // namespace troika::test
