/// refusing_kernel CALL PROGRAM [ARGUMENTS]: the program as where the kernel refuses this system call. pidfd_open: it is older than Linux 5.3.
/// clone3: no thread can be started. clone3_not_permitted: a sandbox answers so to a call that it does not know. link: no file system has hard links.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string_view>

namespace {

struct Refused {
  std::string_view name;
  unsigned number;
  unsigned error;
};
constexpr Refused known[] = {{"pidfd_open", SYS_pidfd_open, ENOSYS},
                             {"clone3", SYS_clone3, EAGAIN},
                             {"clone3_not_permitted", SYS_clone3, EPERM},
                             {"link", SYS_link, EOPNOTSUPP}};

int refuse(const Refused& call) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | call.error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof rules / sizeof *rules, rules};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

}  // namespace

int main(int argc, char** argv) {
  for (const Refused& call : known) {
    if (argc < 3 || call.name != argv[1]) continue;
    if (refuse(call) != 0) return std::perror("refusing_kernel: seccomp"), 1;
    ::execv(argv[2], argv + 2);
    return std::perror(argv[2]), 127;
  }
  return std::fputs("usage: refusing_kernel pidfd_open|clone3|clone3_not_permitted|link PROGRAM [ARGUMENTS]\n", stderr), 64;
}
