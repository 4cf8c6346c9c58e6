// A network between the namespaces PREFIX-1 to PREFIX-N with a delay and a rate, for kernels that
// cannot shape a link (no netem): a switch in this process, with a TAP device as each namespace's
// eth0. netns.sh starts it; it needs root and /dev/net/tun.
//
//   lab_wire PREFIX HOSTS DELAY_MS RATE_MBIT
//
// The delay is one way. The rate is that of a host's line, in each direction: what several hosts
// send to one shares the line of the receiver. Prints "ready" and goes on until it is told to end.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>
#include <system_error>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Frame {
  Clock::time_point arrives;
  std::vector<unsigned char> bytes;
};

struct Port {
  int device = -1;
  Clock::time_point free;       // when the line has sent what it was given so far
  std::deque<Frame> under_way;  // to others
  Clock::time_point received;   // when the line has received what has come so far
  std::deque<Frame> coming_in;
};

struct Shape {
  Seconds delay;
  double bytes_per_second;

  [[nodiscard]] Clock::duration sending(std::size_t bytes) const {
    return std::chrono::duration_cast<Clock::duration>(
        Seconds(static_cast<double>(bytes) / bytes_per_second));
  }
};

// A sender whose line has so much to send is not read: its own queue then fills, and nothing is
// lost.
constexpr std::chrono::milliseconds kBacklog{20};

int must(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

void enter(const std::string& space) {
  const int fd = must(open(space.c_str(), O_RDONLY | O_CLOEXEC), space.c_str());
  must(setns(fd, CLONE_NEWNET), "setns");
  close(fd);
}

// The address of host i (from 1) ends with i, which is how frames find their port.
Port open_port(const std::string& space, int host) {
  enter(space);
  Port port;
  port.device = must(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun");
  ifreq request{};
  std::strncpy(request.ifr_name, "eth0", IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  must(ioctl(port.device, TUNSETIFF, &request), "TUNSETIFF");
  request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
  const std::array<unsigned char, 6> address = {2, 0, 0, 0, 0, static_cast<unsigned char>(host)};
  std::memcpy(request.ifr_hwaddr.sa_data, address.data(), address.size());
  const int socket = must(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
  must(ioctl(socket, SIOCSIFHWADDR, &request), "SIOCSIFHWADDR");
  close(socket);
  return port;
}

void take_frames(Port& port, const Shape& shape) {
  std::array<unsigned char, 65536> buffer;
  while (port.free <= Clock::now() + kBacklog) {
    const ssize_t size = read(port.device, buffer.data(), buffer.size());
    if (size < 14) return;  // nothing more, or no Ethernet header
    port.free = std::max(port.free, Clock::now()) + shape.sending(static_cast<std::size_t>(size));
    port.under_way.push_back({port.free + std::chrono::duration_cast<Clock::duration>(shape.delay),
                              {buffer.begin(), buffer.begin() + size}});
  }
}

// A frame comes in while it is sent, so a line that is free adds nothing.
void carry(std::vector<Port>& ports, std::size_t from, const Shape& shape) {
  auto& under_way = ports[from].under_way;
  while (!under_way.empty() && under_way.front().arrives <= Clock::now()) {
    const Frame& frame = under_way.front();
    const bool to_all = (frame.bytes[0] & 1) != 0;
    for (std::size_t to = 0; to < ports.size(); ++to) {
      if (to == from || (!to_all && frame.bytes[5] != to + 1)) continue;
      Port& port = ports[to];
      port.received = std::max(frame.arrives, port.received + shape.sending(frame.bytes.size()));
      port.coming_in.push_back({port.received, frame.bytes});
    }
    under_way.pop_front();
  }
}

void deliver(Port& port) {
  auto& coming_in = port.coming_in;
  while (!coming_in.empty() && coming_in.front().arrives <= Clock::now()) {
    const auto& bytes = coming_in.front().bytes;
    // A receiver whose queue is full loses the frame, as on any wire.
    [[maybe_unused]] const ssize_t size = write(port.device, bytes.data(), bytes.size());
    coming_in.pop_front();
  }
}

void wait_for_work(std::vector<Port>& ports) {
  Clock::time_point next = Clock::now() + std::chrono::seconds(1);
  std::vector<pollfd> watched;
  for (const Port& port : ports) {
    const bool readable = port.free <= Clock::now() + kBacklog;
    if (!readable) next = std::min(next, port.free - kBacklog);
    if (!port.under_way.empty()) next = std::min(next, port.under_way.front().arrives);
    if (!port.coming_in.empty()) next = std::min(next, port.coming_in.front().arrives);
    watched.push_back({port.device, static_cast<short>(readable ? POLLIN : 0), 0});
  }
  const auto left = std::max(Clock::duration::zero(), next - Clock::now());
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  const timespec time{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  ppoll(watched.data(), watched.size(), &time, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: lab_wire PREFIX HOSTS DELAY_MS RATE_MBIT\n");
    return 2;
  }
  try {
    const Shape shape{Seconds(std::stod(argv[3]) / 1e3), std::stod(argv[4]) * 1e6 / 8};
    std::vector<Port> ports;
    for (int host = 1; host <= std::stoi(argv[2]); ++host) {
      ports.push_back(
          open_port("/run/netns/" + std::string(argv[1]) + "-" + std::to_string(host), host));
    }
    std::puts("ready");
    std::fflush(stdout);
    while (true) {
      for (Port& port : ports) take_frames(port, shape);
      for (std::size_t from = 0; from < ports.size(); ++from) carry(ports, from, shape);
      for (Port& port : ports) deliver(port);
      wait_for_work(ports);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lab_wire: %s\n", error.what());
    return 1;
  }
}
