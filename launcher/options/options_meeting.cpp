// Where the nodes meet, and which of them this is.
#include <algorithm>

#include <fmt/format.h>

#include "launcher/options/cluster.hpp"
#include "launcher/options/option_parser.hpp"
#include "launcher/options/option_values.hpp"

namespace elrun::inline v0::launcher {

void OptionParser::parse_meeting() {
  const std::string& backend = given_.get("rdzv_backend").text;
  out_.backend = backend;
  out_.checkpoint_root = given_.get("checkpoint_root").text;
  out_.topology = given_.get("topology").text;
  if (out_.topology.size() > topology_max)
    problems_.value(fmt::format("{}: {} characters, more than {}", given_.shown("topology"), out_.topology.size(), topology_max));
  const bool by_etcd = backend == "etcd" || backend == "etcd-v2";
  if (!by_etcd && backend != "static" && backend != "c10d")
    problems_.value(fmt::format("{}: must be static, c10d or etcd", given_.shown("rdzv_backend")));
  if (given_.is_given("node_rank"))
    if (const auto n = integer("node_rank", 0, nodes_limit - 1)) out_.node_rank = static_cast<std::int32_t>(*n);
  parse_addresses();

  const bool alone = out_.round.nodes_max == 1;
  out_.sources.run = source_of("rdzv_id");
  if (given_.flag("standalone")) {
    if (!alone)
      problems_.contradiction(fmt::format("--standalone means one node, but {} asks for more; drop one of them", given_.shown("nnodes")));
    return;  // run, endpoint and backend are replaced, as torchrun does
  }
  if (!alone) parse_rank(backend == "static");
  else if (out_.node_rank > 0)
    out_.notes.push_back(
        fmt::format("{} has no effect: without --nnodes above 1 this node is a job of its own; give --nnodes N if there are others",
                    given_.shown("node_rank")));
  if (by_etcd) parse_etcd(given_.get("rdzv_endpoint").text);
  else parse_meeting_point(alone);
}

// Of this node, as others reach it, and of the master.
void OptionParser::parse_addresses() {
  if (given_.is_given("master_port"))
    if (const auto n = integer("master_port", 0, 65535); n && *n != 0) master_port_ = static_cast<std::uint16_t>(*n);  // 0: any
  out_.local_address = given_.get("local_addr").text;
  if (given_.is_given("local_addr") && !host_is_plain(out_.local_address))
    problems_.value(fmt::format("{}: not a host name or address", given_.shown("local_addr")));
  else if (const auto pod_address = given_.variable("POD_IP");
           pod_address && host_is_plain(*pod_address) && !given_.is_given("local_addr") && out_.round.nodes_max > 1)
    out_.local_address = *pod_address;
  if (given_.is_given("master_addr") && !host_is_plain(given_.get("master_addr").text))
    problems_.value(fmt::format("{}: not a host name or address", given_.shown("master_addr")));
}

// Without etcd: at a host and a port. A node that is alone needs none.
void OptionParser::parse_meeting_point(bool alone) {
  const bool is_static = given_.get("rdzv_backend").text == "static";
  // torchrun's documentation has `localhost:0`, any free port: no other node can know it, so none is expected.
  if (alone && given_.get("rdzv_endpoint").text.ends_with(":0")) {
    if (given_.is_given("rdzv_id")) out_.run = RunId{given_.get("rdzv_id").text};
    return;
  }
  const Asked asked = parse_given_endpoint();
  if (!asked.host && !asked.port && alone) {  // a single node: no rendezvous
    if (is_static && given_.is_given("master_port")) out_.run = RunId{given_.get("rdzv_id").text}, out_.master_port = master_port_;
    else if (given_.is_given("rdzv_id")) out_.run = RunId{given_.get("rdzv_id").text};
    return;
  }
  out_.run = RunId{given_.get("rdzv_id").text.empty() ? "none" : given_.get("rdzv_id").text};
  if (asked.host) out_.endpoint = Endpoint{*asked.host, 0}, out_.sources.endpoint = source_of("rdzv_endpoint");
  else if (!find_endpoint(is_static, asked.port ? given_.shown("rdzv_endpoint") + " names no host, and" : given_.shown("nnodes"))) return;
  choose_ports(asked);
  out_.never_host = is_host_ == false;
  if (is_host_) out_.host_rule = *is_host_ ? HostRule::always : HostRule::never;
  else if (is_static && given_.is_given("node_rank")) out_.host_rule = out_.node_rank == 0 ? HostRule::always : HostRule::never;
}

// The port where the nodes meet, and that of the workers (MASTER_PORT), which must not be the same.
void OptionParser::choose_ports(const Asked& asked) {
  const bool is_static = given_.get("rdzv_backend").text == "static";
  if (asked.port) out_.endpoint->port = *asked.port;
  else if (out_.endpoint->port == 0) out_.endpoint->port = is_static ? master_port_default : endpoint_port_default;
  if (is_static && master_port_) out_.master_port = master_port_;
  const bool same_port = out_.master_port == out_.endpoint->port;
  if (same_port && asked.port) {  // others may have been told that the nodes meet there: a firewall, `elrun store`
    out_.master_port.reset();
    out_.notes.push_back(fmt::format("{} is the port of {}, where the nodes meet; the workers get a free one (MASTER_PORT)",
                                     given_.shown("master_port"), given_.shown("rdzv_endpoint")));
  }
  // The worker of rank 0 is to listen there: a program may have that port in its own arguments.
  const bool shares_port = same_port && !asked.port;
  if (shares_port) out_.endpoint->port = meeting_port_beside(*master_port_);
  if (!asked.host)
    out_.notes.push_back(fmt::format("{}; the nodes meet at {}:{}, by {}{}",
                                     asked.port ? given_.shown("rdzv_endpoint") + " names no host" : std::string{"no --rdzv_endpoint"},
                                     out_.endpoint->host, out_.endpoint->port, out_.sources.endpoint,
                                     shares_port ? fmt::format("; port {} is left to the workers (MASTER_PORT)", *master_port_) : ""));
}

// Orders new nodes, so that the pod called 0 has rank 0. In a fixed world it orders all nodes, each time.
void OptionParser::parse_rank(bool is_static) {
  if (given_.is_given("node_rank")) {
    out_.sources.node_rank = source_of("node_rank");
    if (out_.node_rank < static_cast<std::int64_t>(out_.round.nodes_max)) return;
    const std::string why =
        fmt::format("{}: {} nodes have the ranks 0 to {}", given_.shown("node_rank"), out_.round.nodes_max, out_.round.nodes_max - 1);
    if (is_static)
      problems_.value(why + "; count nodes from 0, and not workers");  // torchrun's nodes would wait for the one that is missing
    else out_.notes.push_back(why + "; it only orders the nodes, and this one comes last");
  } else if (const auto hint = rank_hint(environment_, scheduler_, machine_.host_name())) {
    out_.node_rank = static_cast<std::int32_t>(hint->rank);
    out_.sources.node_rank = hint->source;
  }
}

OptionParser::Asked OptionParser::parse_given_endpoint() {
  std::string_view text = trimmed(given_.get("rdzv_endpoint").text);
  if (text == ":" || (text.ends_with(':') && std::count(text.begin(), text.end(), ':') == 1)) {
    out_.notes.push_back(fmt::format("{} has no port behind the colon; an unset variable?", given_.shown("rdzv_endpoint")));
    text.remove_suffix(1);
  }
  if (text.empty()) return {};
  const auto parsed = parse_endpoint(text, 0);
  if (!parsed) {
    problems_.value(fmt::format("{}: {}", given_.shown("rdzv_endpoint"), parsed.failure().what));
    return {};
  }
  Asked asked;
  if (!parsed->host.empty()) asked.host = parsed->host;
  if (parsed->port != 0) asked.port = parsed->port;
  return asked;
}

// Where the nodes of this job can meet, from what else is known; says what it looked at when that is nothing.
bool OptionParser::find_endpoint(bool is_static, const std::string& who) {
  if (!problems_.empty()) return false;  // one endpoint that cannot be read is enough of a message
  const auto take = [&](Endpoint endpoint, std::string source) {
    if (endpoint.port == 0 && master_port_) endpoint.port = *master_port_;
    out_.endpoint = std::move(endpoint), out_.sources.endpoint = std::move(source);
    return true;
  };
  const bool overridden = given_.get("rdzv_endpoint").source.starts_with("--");
  if (const auto variable = given_.variable("PET_RDZV_ENDPOINT"); variable && overridden)
    if (const auto parsed = parse_endpoint(*variable, 0); parsed && !parsed->host.empty()) return take(*parsed, "PET_RDZV_ENDPOINT");
  if (given_.is_given("master_addr")) return take({given_.get("master_addr").text, 0}, source_of("master_addr"));
  if (const auto host = given_.variable("MASTER_ADDR")) {
    const auto port = to_integer(given_.variable("MASTER_PORT").value_or("0"));
    if (!host_is_plain(*host) || !port || *port < 0 || *port > 65535)
      return problems_.value("MASTER_ADDR and MASTER_PORT: not a host and a port; give --rdzv_endpoint HOST:PORT"), false;
    return take({*host, master_port_.value_or(static_cast<std::uint16_t>(*port))}, "MASTER_ADDR");
  }
  if (scheduler_ && scheduler_->endpoint) {
    if (!given_.is_given("rdzv_id") && !scheduler_->run.empty()) out_.run = RunId{scheduler_->run}, out_.sources.run = scheduler_->name;
    return take(*scheduler_->endpoint, scheduler_->name);
  }
  if (const auto& name = pod()) return take({name->first, name->port.value_or(0)}, "the name of this pod");
  if (is_static && (master_port_ || given_.is_given("node_rank")) && !in_kubernetes())
    return take({"127.0.0.1", 0}, std::string{leads_nowhere});
  problems_.contradiction(fmt::format(
      "{} needs a place where the nodes meet, and none was found: --master_addr, PET_RDZV_ENDPOINT, PET_MASTER_ADDR and MASTER_ADDR are "
      "not set, {}, and {} is not the name of a pod that tells it; give --rdzv_endpoint HOST:PORT",
      who, scheduler_ ? scheduler_->name + " does not tell it" : "neither Slurm nor mpirun started this", machine_.host_name()));
  return false;
}

void OptionParser::parse_etcd(std::string_view servers) {
  if (trimmed(servers).empty())
    problems_.contradiction(fmt::format("{} needs the addresses of etcd's servers: give --rdzv_endpoint HOST:PORT[,HOST:PORT...]",
                                        given_.shown("rdzv_backend")));
  const std::string_view run = trimmed(given_.get("rdzv_id").text);
  if (!given_.is_given("rdzv_id") || run.empty() || run == "none")
    problems_.contradiction(
        fmt::format("{} keeps a job's coordinator and its newest generation under the job's name: give each job "
                    "an --rdzv_id of its own",
                    given_.shown("rdzv_backend")));
  out_.run = RunId{given_.get("rdzv_id").text};
  out_.sources.endpoint = source_of("rdzv_endpoint");
  for (std::string_view rest = servers; !trimmed(rest).empty();) {
    const std::string_view server = rest.substr(0, rest.find(','));
    rest = rest.find(',') == std::string_view::npos ? std::string_view{} : rest.substr(rest.find(',') + 1);
    const auto parsed = parse_endpoint(server, etcd_port_default);
    if (!parsed || parsed->host.empty())
      return problems_.value(
          fmt::format("{}: `{}` {}", given_.shown("rdzv_endpoint"), server, parsed ? "names no host" : parsed.failure().what));
    out_.etcd.push_back(*parsed);
  }
  if (out_.etcd.size() > etcd_servers_max)
    problems_.value(fmt::format("{}: more than {} servers", given_.shown("rdzv_endpoint"), etcd_servers_max));
  if (is_host_) out_.host_rule = *is_host_ ? HostRule::always : HostRule::never;
}

}  // namespace elrun::inline v0::launcher
