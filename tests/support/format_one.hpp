#pragma once
/// \file The writer of format 1's manifest, which elrun had until format 2: a row per fragment. Reading it stays.

#include <string>

#include "checkpoint/format/json.hpp"
#include "checkpoint/format/plan.hpp"
#include "checkpoint/format/records.hpp"

namespace elrun::test {

/// Files with blocks of 1 MiB, for there were no others.
inline std::string manifest_in_format_one(const Manifest& manifest) {
  Json body = parse_json(as_bytes(encode(manifest)), "own output").value();
  body["format"] = 1;
  body.erase("layout");
  Json files = Json::array(), fragments = Json::array();
  for (const FileRecord& f : manifest.files)
    files.push_back({{"name", f.name},
                     {"bytes", f.bytes},
                     {"header_bytes", f.header_bytes},
                     {"table_offset", f.table_offset},
                     {"header_crc", hex32(f.header_crc)},
                     {"table_crc", hex32(f.table_crc)},
                     {"file_crc", hex32(f.file_crc)}});
  for (const FragmentRecord& f : fragments_of(manifest))
    fragments.push_back(Json::array({f.kind, f.unit, f.begin, f.end, f.file, f.offset}));
  body["files"] = std::move(files);
  body["fragments"] = std::move(fragments);
  return canonical(body) + "\n";
}

}  // namespace elrun::test
