#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/milliseconds.h>
#include <troika/base/open_file_limit.h>
#include <troika/comm/shm/attach.h>
#include <troika/comm/shm/shm_group.h>

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace troika::shm {
namespace {

constexpr std::string_view kWho = "a rank that connects by shared memory";
constexpr std::uint64_t kHello = 0x54524b53484d3031;  // "TRKSHM01"

sockaddr_un address_of(const std::string& name, socklen_t& size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A leading zero byte: the abstract namespace, which leaves no file.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

std::string random_name() {
  std::array<std::uint64_t, 2> words{};
  check(getrandom(words.data(), sizeof(words), 0) == static_cast<ssize_t>(sizeof(words)),
        "no random bytes");
  return "troika-" + hex(words[0]) + hex(words[1]);
}

// False when the deadline passes first.
bool readable(int descriptor, const Deadline& deadline) {
  while (true) {
    pollfd watched{descriptor, POLLIN, 0};
    const int ready = poll(&watched, 1, poll_milliseconds(deadline.left()));
    if (ready > 0) return true;
    if (ready == 0 && deadline.passed()) return false;
  }
}

std::optional<ucred> credentials_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

UniqueFd make_socket() {
  // Packets, not a stream: a message arrives whole, with the descriptor that belongs to it.
  UniqueFd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made.valid()) check_open_files(errno, kWho);
  check(made.valid(), "no Unix socket");
  return made;
}

}  // namespace

Listener::Listener() : name_(random_name()), socket_(make_socket()) {
  socklen_t size = 0;
  const sockaddr_un address = address_of(name_, size);
  check(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
            listen(socket_.get(), SOMAXCONN) == 0,
        "a Unix socket cannot listen");
}

UniqueFd Listener::accept(const Deadline& deadline) const {
  while (readable(socket_.get(), deadline)) {
    UniqueFd caller(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!caller.valid()) check_open_files(errno, kWho);  // it would be readable for ever
    const auto peer = caller.valid() ? credentials_of(caller.get()) : std::nullopt;
    if (peer && peer->uid == geteuid()) return caller;  // other users are refused
  }
  throw TimedOut({});
}

UniqueFd connect_to_listener(const std::string& name) {
  UniqueFd caller = make_socket();
  socklen_t size = 0;
  const sockaddr_un address = address_of(name, size);
  if (connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return {};
  const auto peer = credentials_of(caller.get());
  // A name of the abstract namespace has no permissions: any user of the host may have bound it.
  if (!peer || peer->uid != geteuid()) return {};
  return caller;
}

PeerConnection::PeerConnection(UniqueFd socket, Watch watch) : socket_(std::move(socket)) {
  if (const auto peer = credentials_of(socket_.get())) pid_ = peer->pid;
  if (pid_ > 0 && watch == Watch::kProcess)
    exit_fd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
}

bool PeerConnection::has_ended() const {
  std::array<pollfd, 2> ends = {exit_fd(), pollfd{socket_.get(), 0, 0}};
  return poll(ends.data(), ends.size(), 0) > 0;
}

bool PeerConnection::send(std::uint64_t key, std::uint64_t value, int descriptor) const {
  std::array<std::uint64_t, 2> words = {key, value};
  iovec bytes{words.data(), sizeof(words)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    // Never waits: Segments calls this under its lock, and a peer that has stopped would stop this
    // rank. The thread that watches empties the socket on the other side.
    sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof(words));
}

PeerConnection::FdMessage PeerConnection::receive(int member, const Deadline& deadline) const {
  while (await_message(deadline)) {
    if (auto message = try_receive())
      return *std::move(message);  // nothing if another thread was faster
  }
  throw TimedOut({member});
}

bool PeerConnection::await_message(const Deadline& deadline) const {
  return readable(socket_.get(), deadline);
}

std::optional<PeerConnection::FdMessage> PeerConnection::try_receive() const {
  std::array<std::uint64_t, 2> words{};
  iovec bytes{words.data(), sizeof(words)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size = 0;
  do {
    // CLOEXEC in the call itself: a child that another thread starts between two calls would keep
    // the memory.
    size = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == EAGAIN) return std::nullopt;
  if (size != static_cast<ssize_t>(sizeof(words))) throw Broken("a peer is gone");
  const bool is_truncated = (message.msg_flags & MSG_CTRUNC) != 0;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr) return FdMessage{words[0], words[1], {}, is_truncated};
  if (header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) {
    throw Broken("a peer is gone");
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return FdMessage{words[0], words[1], UniqueFd(descriptor), is_truncated};
}

Attached attach(const Listener& own, const std::vector<std::string>& names, int index,
                const Shape& shape, const Deadline& deadline) {
  const int members = static_cast<int>(names.size());
  Attached attached;
  std::vector<std::optional<ControlBlock>> control_blocks(names.size());
  attached.connections.resize(names.size());
  control_blocks[static_cast<std::size_t>(index)] = ControlBlock::create(shape);
  const MemoryFile& memory = control_blocks[static_cast<std::size_t>(index)]->memory();
  const auto greet = [&](const PeerConnection& connection, int member) {
    if (!connection.send(kHello, static_cast<std::uint64_t>(index), memory.descriptor())) {
      throw TimedOut({member});
    }
  };
  // Each member connects to the listeners of those before it, and accepts those after it.
  for (int member = 0; member < index; ++member) {
    // Connecting does not wait for accept(), so that no member waits here for another.
    PeerConnection connection(connect_to_listener(names[static_cast<std::size_t>(member)]));
    greet(connection, member);
    attached.connections[static_cast<std::size_t>(member)] = std::move(connection);
  }
  for (int left = members - 1 - index; left > 0; --left) {
    const auto missing = [&] {
      std::vector<int> absent;
      for (int member = index + 1; member < members; ++member) {
        if (!control_blocks[static_cast<std::size_t>(member)]) absent.push_back(member);
      }
      return absent;
    };
    try {
      PeerConnection connection(own.accept(deadline));
      PeerConnection::FdMessage hello = connection.receive(index, deadline);
      if (hello.is_truncated) check_open_files(EMFILE, kWho);
      const auto member = static_cast<std::size_t>(hello.value);
      if (hello.key != kHello || hello.value >= names.size() || control_blocks[member])
        throw TimedOut({});
      // The answer goes out before the peer's memory is mapped: a failure here is this rank's, and
      // the peer need not wait to see it.
      greet(connection, static_cast<int>(member));
      control_blocks[member] = ControlBlock::attach(std::move(hello.descriptor), shape);
      attached.connections[member] = std::move(connection);
    } catch (const TimedOut&) {
      throw TimedOut(missing());
    }
  }
  // Last: a member answers when it accepts, so that waiting for it in the first loop would attach
  // the members one after another.
  for (int member = 0; member < index; ++member) {
    PeerConnection::FdMessage hello =
        attached.connections[static_cast<std::size_t>(member)]->receive(member, deadline);
    control_blocks[static_cast<std::size_t>(member)] =
        ControlBlock::attach(std::move(hello.descriptor), shape);
  }
  for (auto& control_block : control_blocks)
    attached.control_blocks.push_back(*std::move(control_block));
  return attached;
}

}  // namespace troika::shm
