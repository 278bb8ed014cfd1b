#pragma once
/// \file The worker protocol: what a worker and its agent say to each other over the agent's socket.
///
/// Frame, little-endian: u32 length of what follows the checksum | u32 CRC-32C of that | u16 protocol version | u16 type | payload.
/// Versions are checked in Hello and Welcome; unknown trailing fields of a payload are ignored, unknown types skipped.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include <elrun/failure.hpp>
#include <elrun/session.hpp>

#include "lib/base/bytes.hpp"
#include "lib/link/store_call.hpp"

namespace elrun::inline v0 {

constexpr std::uint16_t protocol_version = 1;
constexpr Bytes unauthenticated_message_max = 8_KiB;  ///< Of a frame over TCP, until the connection is a member of a complete world.
constexpr Bytes message_max =
    33_MiB;  ///< Of a frame (two largest values and a key fit); a longer one ends the connection before anything is allocated.

/// Worker to agent, first of all.
struct Hello {
  std::uint16_t version = protocol_version;
  std::string release;  ///< libelrun's version, for people
  std::uint64_t pid = 0;
  std::uint32_t rank = 0;  ///< RANK; under elrun also checked against the peer's credentials
  std::uint32_t world = 1;
  bool is_job = false;
  bool stays = false;         ///< Its process can go on in the next generation.
  bool says_ready = false;    ///< It says `ReadyForPlace`.
  bool says_end = false;      ///< It says `JobOver` before its process ends well: one that ends with 0 otherwise has failed.
  std::string proof;          ///< In an operator's job, of its token: a digest in hex; empty: it has none
  std::uint64_t session = 0;  ///< In an operator's job, at random: who says the same on two connections is one worker. 0: it says none.
};
/// Why this worker cannot be talked to; nothing when it can.
[[nodiscard]] std::optional<Failure> incompatible(const Hello& hello);

/// Agent to worker: your place. Sent once the world is complete; to a worker that stays, again for each generation.
struct Welcome {
  Place place;
  Session::Remembered remembered{};
};
/// Agent to worker: go away, and why. The last frame of a connection.
struct Refusal {
  Failure failure;
};
/// Both directions: I live.
struct Alive {};
/// Worker to agent: a step was decided. The fields are `StepProgress`'s.
struct StepDecided {
  Generation generation;
  std::uint64_t step = 0;
  std::uint64_t steps = 0;
  std::optional<float> loss{};
  StepTimes times{};
};
/// Worker to agent: all members decided that the job is over with success. Agent to worker: I have it.
struct JobOver {
  Generation generation;
};
/// One message with three meanings. Agent to worker: your generation is over. Worker to agent, with the code `generation_over`: an acknowledgement,
/// after which it does nothing for that generation any more. Worker to agent, with another code: it cannot go on in this generation.
struct GenerationOver {
  Generation generation;
  Failure why;
  Duration returns_within{0};  ///< Of an acknowledgement: the program may need this long to come back from its own code.
  bool unreachable = false;    ///< With `peer_lost`: no packet of `why.peer` comes any more, or no connection to it; it may live.
  bool own = false;            ///< With `peer_lost`: the failure is of this worker's own device, or of a library there. No peer is lost.
};
/// Worker to agent: the program has taken its place in this generation.
struct Returned {
  Generation generation;
};

/// Agent to worker: your node was asked to leave; save what would be lost. Worker to agent: it is saved.
struct PrepareToLeave {
  Generation generation;
};

/// Worker to agent: a checkpoint was acknowledged.
struct CheckpointSaved {
  std::string acknowledgement;
};

/// Worker to agent: from where all members of this generation go on.
struct WentOnFrom {
  Generation generation;
  Restoration restoration;
};

/// Worker to agent: a checkpoint of this step could not be saved.
struct SaveFailed {
  Generation generation;
  std::uint64_t step = 0;
  std::uint64_t count = 0;  ///< Of this generation's failed saves, from 1 on: all members say the same of each.
  Failure why;
};

/// Worker to agent: no checkpoint of this step was saved, because the one before it was still being written.
struct SaveLeftOut {
  Generation generation;
  std::uint64_t step = 0;
  std::uint64_t count = 0;  ///< As in SaveFailed.
};
/// Worker to agent: it waits for the storage of its checkpoints, or for members that do, and does not hang.
struct WaitsForStorage {
  Generation generation;
  StorageWaiting waiting;
};
/// Worker to agent: a rank of its generation is slow. All members say the same.
struct RankIsSlow {
  Generation generation;
  SlowRank slow;
};
/// `elrun ckptd` to agent: one rank's part of a checkpoint is on the storage and has its vote; or it could not be written.
struct PartVoted {
  std::uint64_t step = 0;
  std::uint32_t rank = 0;
  std::uint64_t bytes = 0;           ///< Of the state.
  Duration took{0};                  ///< To write and sync it.
  std::optional<Failure> refusal{};  ///< Why the vote is no.
};

/// Worker to agent: this generation is over, and the program waits for its place in the next one.
struct ReadyForPlace {
  Generation generation;
};

using Message =
    std::variant<Hello, Welcome, Refusal, Alive, StepDecided, JobOver, GenerationOver, StoreRequest, StoreReply, PrepareToLeave, Returned,
                 ReadyForPlace, CheckpointSaved, WentOnFrom, SaveFailed, SaveLeftOut, PartVoted, WaitsForStorage, RankIsSlow>;

/// One whole frame.
[[nodiscard]] ByteVector encode(const Message& message);

/// The payloads of StoreRequest and StoreReply alone, for the coordinator's stream, which carries them as they are.
[[nodiscard]] ByteVector encode_payload(const StoreRequest& request);
[[nodiscard]] ByteVector encode_payload(const StoreReply& reply);
[[nodiscard]] Result<StoreRequest> decode_store_request(ByteSpan payload);
[[nodiscard]] Result<StoreReply> decode_store_reply(ByteSpan payload);

/// Cuts a stream of bytes into messages. Pure: bytes in, messages out.
class MessageReader {
 public:
  /// Appends what came from the socket.
  void feed(ByteSpan bytes);
  /// The next whole message, nothing when more bytes are needed, or why the stream is broken for good.
  [[nodiscard]] Result<std::optional<Message>> next();
  /// A longer frame breaks the stream, before it is kept.
  void allow(Bytes frame_max) { frame_max_ = frame_max; }

 private:
  Bytes frame_max_ = message_max;
  ByteVector buffer_;
  std::size_t begin_ = 0;
};

}  // namespace elrun::inline v0
