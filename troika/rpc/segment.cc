#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <troika/rpc/segment.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

namespace troika::detail {
namespace {

constexpr std::string_view kFolder = "/dev/shm/";
constexpr std::string_view kPrefix = "troika-rpc-";

std::string path_of(std::string_view name) {
  std::string path(kFolder);
  path.append(kPrefix).append(name);
  return path;
}

sockaddr_un address_of(std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = path_of(name);
  static_assert(kFolder.size() + kPrefix.size() + kSegmentNameBytes < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd make_socket() {
  return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

UniqueFd connect_to_name(std::string_view name) {
  UniqueFd made = make_socket();
  const sockaddr_un address = address_of(name);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (!made.valid() || connect(made.get(), generic, sizeof(address)) != 0) return {};
  return made;
}

// Returns whether the process at the other end is one of this user's.
bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// Returns a name that nobody can guess; empty where the system has no random numbers.
std::string random_name() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<unsigned char, kSegmentNameBytes / 2> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return "";
  std::string name;
  for (const unsigned char byte : bytes) {
    name += kDigits[byte >> 4U];
    name += kDigits[byte & 15U];
  }
  return name;
}

// Removes a socket to which nobody listens any more: its process was killed while it was offered.
void remove_if_left_behind(std::string_view name) {
  constexpr std::time_t kOldSeconds = 60;  // a name is there for a moment
  const std::string path = path_of(name);
  struct stat facts {};
  if (lstat(path.c_str(), &facts) != 0 || !S_ISSOCK(facts.st_mode)) return;
  if (facts.st_uid != geteuid() || facts.st_mtime + kOldSeconds > std::time(nullptr)) return;
  if (!connect_to_name(name).valid() && errno == ECONNREFUSED) unlink(path.c_str());
}

void remove_all_left_behind() {
  DIR* folder = opendir(std::string(kFolder).c_str());
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    std::string_view name(entry->d_name);
    if (!name.starts_with(kPrefix)) continue;
    name.remove_prefix(kPrefix.size());
    if (is_segment_name(name)) remove_if_left_behind(name);
  }
  closedir(folder);
}

// The room for one descriptor beside a message.
struct alignas(cmsghdr) DescriptorRoom {
  std::array<char, CMSG_SPACE(sizeof(int))> bytes{};
};

// Makes a message of one byte, and of a descriptor in `room`.
msghdr message_with(iovec& part, DescriptorRoom& room) {
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room.bytes.data();
  message.msg_controllen = room.bytes.size();
  return message;
}

bool send_descriptor(int socket, int descriptor) {
  char byte = 0;
  iovec part{&byte, 1};
  DescriptorRoom room;
  const msghdr message = message_with(part, room);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

// Returns a descriptor that was sent, or none if none is there. More than one does not fit into
// the room, and the kernel closes the rest.
UniqueFd receive_descriptor(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  DescriptorRoom room;
  msghdr message = message_with(part, room);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return {};
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return {};
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return UniqueFd(descriptor);
}

}  // namespace

bool is_segment_name(std::string_view name) {
  return name.size() == kSegmentNameBytes && std::ranges::all_of(name, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

OwnSegment::OwnSegment(std::string name, UniqueFd listener, std::unique_ptr<SharedMemory> memory)
    : name_(std::move(name)), listener_(std::move(listener)), memory_(std::move(memory)) {}

std::unique_ptr<OwnSegment> OwnSegment::create() {
  remove_all_left_behind();
  std::string name = random_name();
  auto memory = SharedMemory::create();
  UniqueFd listener = make_socket();
  if (name.empty() || !memory || !listener.valid()) return nullptr;
  const sockaddr_un address = address_of(name);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  // The name takes the socket's rights.
  if (fchmod(listener.get(), S_IRUSR | S_IWUSR) != 0 ||
      bind(listener.get(), generic, sizeof(address)) != 0) {
    return nullptr;
  }
  const int listens = listen(listener.get(), 1);
  std::unique_ptr<OwnSegment> made(
      new OwnSegment(std::move(name), std::move(listener), std::move(memory)));
  return listens == 0 ? std::move(made) : nullptr;
}

bool OwnSegment::hand_over() {
  peer_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  hide();
  return peer_.valid() && is_of_this_user(peer_.get()) &&
         send_descriptor(peer_.get(), memory_->descriptor());
}

void OwnSegment::hide() {
  if (!listener_.valid()) return;
  unlink(path_of(name_).c_str());
  listener_.reset();
}

std::unique_ptr<PeerSegment> PeerSegment::find(std::string_view name) {
  if (!is_segment_name(name)) return nullptr;
  UniqueFd connected = connect_to_name(name);
  if (!connected.valid() || !is_of_this_user(connected.get())) return nullptr;
  return std::unique_ptr<PeerSegment>(new PeerSegment(std::move(connected)));
}

SharedMemory* PeerSegment::memory() {
  const std::lock_guard lock(mutex_);
  if (!memory_) {
    UniqueFd file = receive_descriptor(socket_.get());
    if (file.valid()) memory_ = SharedMemory::adopt(std::move(file));
  }
  return memory_.get();
}

bool PeerSegment::is_orphan() const {
  pollfd state{socket_.get(), 0, 0};
  return poll(&state, 1, 0) != 0;  // it was closed at the other end
}

}  // namespace troika::detail
