// elrun_texts DIR: what packages have beside the program, written at build time: the manual page, and what shells read to complete options.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "launcher/chaos/chaos_options.hpp"
#include "launcher/commands/ckpt_options.hpp"
#include "launcher/commands/drain_options.hpp"
#include "launcher/commands/install.hpp"
#include "launcher/http/status_options.hpp"
#include "launcher/options/manual.hpp"
#include "launcher/options/option_table.hpp"

namespace {

using namespace elrun::launcher;

bool write(const std::string& path, const std::string& text) {
  std::ofstream file{path, std::ios::binary};
  file << text << std::flush;
  if (!file.good()) std::fprintf(stderr, "elrun_texts: %s cannot be written\n", path.c_str());
  return file.good();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: elrun_texts DIR\n", stderr), 64;
  const std::string directory = argv[1];
  const std::vector<std::string> help{"--help"};
  const std::vector<CommandHelp> commands{{"store", store_help_text()},
                                          {"doctor", doctor_help_text()},
                                          {"status", std::get<Usage>(parse_status(help)).text},
                                          {"drain", std::get<Usage>(parse_drain(help)).text},
                                          {"ckpt", std::get<Usage>(parse_ckpt(help)).text},
                                          {"chaos", std::get<Usage>(parse_chaos(help, {}, {})).text},
                                          {"install", std::get<Usage>(parse_install(help)).text}};
  const bool written = write(directory + "/elrun.1", manual_page(ELRUN_VERSION, commands)) &&
                       write(directory + "/elrun.bash", completion_text("bash").value()) &&
                       write(directory + "/_elrun", completion_text("zsh").value());
  return written ? 0 : 1;
}
