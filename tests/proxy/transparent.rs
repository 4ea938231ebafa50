//! Transparent mode in network namespaces: redirected connections, by address and by port. Needs root, `ip`, `nft` and `iptables`.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;

use crate::support::client::{Client, Response, chat};
use crate::support::proxy::TestProxy;
use crate::support::upstream::Upstream;
use crate::takeover::Program;

/// Where the client is, the machine of the proxy as the client sees it, and the machine behind it.
const CLIENT: [&str; 2] = ["10.9.0.1", "fd09::1"];
const PROXY: [&str; 2] = ["10.9.0.2", "fd09::2"];
const BEHIND: [&str; 2] = ["10.9.1.2", "fd09:1::2"];

/// A thread in a network namespace of its own, which ends with it.
struct Namespace {
    jobs: mpsc::Sender<Box<dyn FnOnce() + Send>>,
    thread: i32,
}

impl Namespace {
    /// The reason if this system permits no namespaces, or no rules in them.
    fn new() -> Result<Self, String> {
        let (jobs, inbox) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let result = unshare(CloneFlags::CLONE_NEWNET).map(|()| gettid().as_raw());
            sender.send(result).unwrap();
            inbox.into_iter().for_each(|job| job());
        });
        let thread = receiver.recv().unwrap().map_err(|error| format!("no network namespace can be made: {error}"))?;
        let namespace = Self { jobs, thread };
        namespace.commands("ip link set lo up")?;
        namespace.commands(
            "nft 'table inet trial { chain in { type nat hook prerouting priority 0; tcp dport 1 redirect to :2; }; }'
             nft delete table inet trial",
        )?;
        Ok(namespace)
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        self.jobs.send(Box::new(move || sender.send(job()).unwrap())).unwrap();
        receiver.recv().expect("the job ends")
    }

    /// Runs these lines of shell, which a system that permits namespaces permits too.
    fn sh(&self, lines: &str) {
        self.commands(lines).unwrap();
    }

    /// The error output of these lines of shell if one fails.
    fn commands(&self, lines: &str) -> Result<(), String> {
        let lines = lines.to_owned();
        self.run(move || {
            let mut command = Command::new("sh");
            let output = command.args(["-ec", &lines]).stdin(Stdio::null()).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            if output.status.success() { Ok(()) } else { Err(stderr) }
        })
    }

    fn nft(&self, rules: &str) {
        self.sh(&format!("nft -f - <<'END'\n{rules}\nEND\n"));
    }

    /// Connects this namespace to another one.
    fn link(&self, other: &Self, name: &str, addresses: [[&str; 2]; 2]) {
        self.sh(&format!("ip link add {name} type veth peer name {name} netns {}", other.thread));
        for (namespace, [v4, v6]) in [self, other].into_iter().zip(addresses) {
            namespace.sh(&format!(
                "ip addr add {v4}/24 dev {name}; ip addr add {v6}/64 dev {name} nodad; ip link set {name} up"
            ));
        }
    }

    fn engine(&self, at: &str, port: u16, text: &'static str) -> Upstream {
        let at = SocketAddr::new(at.parse().unwrap(), port);
        self.run(move || {
            let answer = stream(text);
            Upstream::listening(TcpListener::bind(at).unwrap(), move |mut conn| {
                while conn.request().is_some() {
                    conn.send(&answer);
                }
            })
        })
    }

    fn proxy(&self, settings: &'static [(&str, &str)]) -> TestProxy {
        self.run(move || {
            let given = [("transparent", "true"), ("listen", "[::]:8080"), ("admin", "127.0.0.1:0")];
            TestProxy::start(&[&given, settings].concat())
        })
    }

    fn ask(&self, host: &str, port: u16) -> Response {
        let at = SocketAddr::new(host.parse::<IpAddr>().unwrap(), port);
        self.run(move || {
            let mut client = Client::connect(at);
            client.send(chat(r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi"}]}"#));
            client.response()
        })
    }
}

/// A stream of two tokens, with an odd spelling of its head that must arrive as it is.
fn stream(text: &str) -> String {
    let event = |delta: &str| format!("data: {{\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
    let content = |text: &str| event(&format!("{{\"content\":\"{text}\"}}"));
    let body = format!("{}{}data: [DONE]\n\n", content(text), content("!"));
    format!("HTTP/1.1 200 OK\r\ncontent-TYPE: text/event-stream\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The value of a series of the first token, by server.
fn first_tokens(proxy: &TestProxy, host: &str, port: u16) -> f64 {
    let labels = "gen_ai_operation_name=\"chat\",gen_ai_provider_name=\"openai\",gen_ai_request_model=\"m\"";
    proxy.metric(&format!(
        "gen_ai_server_time_to_first_token_seconds_count{{{labels},server_address=\"{host}\",server_port=\"{port}\"}}"
    ))
}

fn refused(proxy: &TestProxy, reason: &str) -> f64 {
    proxy.metric(&format!("streamgauge_proxy_refused_connections_total{{reason=\"{reason}\"}}"))
}

/// Runs a test where the system permits it.
fn where_permitted(test: &str, body: impl FnOnce() -> Result<(), String>) {
    if let Err(reason) = body() {
        crate::support::skip(&format!("transparent::{test}: {reason}"));
    }
}

/// Both servers of the machine are asked, byte for byte, and counted by destination.
fn asks_both(client: &Namespace, (proxied, proxy): (&Namespace, TestProxy), hosts: [&'static str; 2]) -> TestProxy {
    for host in hosts {
        for (port, text) in [(8000, "one"), (8001, "two")] {
            let response = client.ask(host, port);
            let expected = stream(text);
            let (head, body) = expected.split_once("\r\n\r\n").unwrap();
            assert_eq!((response.head.trim_end(), &*response.text()), (head, body), "{host} {port}");
        }
    }
    proxied.run(move || {
        for host in hosts {
            for port in [8000, 8001] {
                crate::support::captured::until("it is counted", || first_tokens(&proxy, host, port) == 1.0);
            }
        }
        let usage = "streamgauge_proxy_resource_usage{resource=\"destinations\"}";
        crate::support::captured::until("unused destinations are forgotten", || proxy.metric(usage) == 0.0);
        proxy
    })
}

#[test]
fn redirected_connections_reach_the_servers_that_clients_chose() {
    where_permitted("redirect", || {
        let (client, pod) = (Namespace::new()?, Namespace::new()?);
        client.link(&pod, "pod", [CLIENT, PROXY]);
        pod.nft(
            "table inet gauge {
               chain in {
                 type nat hook prerouting priority dstnat;
                 iifname != lo tcp dport {8000, 8001, 8002} redirect to :8080
               }
             }",
        );
        let _engines: Vec<_> =
            [(8000, "one"), (8001, "two")].map(|(port, text)| PROXY.map(|host| pod.engine(host, port, text))).into();
        let proxy = asks_both(&client, (&pod, pod.proxy(&[])), PROXY);
        let nobody = client.ask(PROXY[0], 8002);
        assert_eq!(nobody.status(), 502);
        assert!(
            nobody.field("x-streamgauge-error").unwrap().starts_with("upstream; cannot connect to 10.9.0.2:8002: ")
        );
        for host in PROXY {
            let direct = client.ask(host, 8080);
            let why = direct.field("x-streamgauge-error").unwrap().to_owned();
            assert_eq!(direct.status(), 421, "{why}");
            assert!(why.starts_with("proxy; the connection was not redirected: "), "{why}");
        }
        pod.run(move || {
            assert_eq!(refused(&proxy, "own_address"), 2.0);
            assert_eq!(first_tokens(&proxy, PROXY[0], 8002), 0.0, "who accepts no connection has no series");
            assert!(proxy.ready().0);
        });
        Ok(())
    });
}

#[test]
fn the_manuals_lines_of_iptables_redirect_too() {
    where_permitted("iptables", || {
        let (client, pod) = (Namespace::new()?, Namespace::new()?);
        client.link(&pod, "pod", [CLIENT, PROXY]);
        let manual = include_str!("../../src/proxy/README.md");
        let rule =
            manual.lines().find_map(|line| line.strip_prefix("iptables ")?.split_once("--to-ports").map(|it| it.0));
        for program in ["iptables", "ip6tables"] {
            pod.commands(&format!("{program} {}--to-ports 8080", rule.unwrap()))?;
        }
        let _engines: Vec<_> =
            [(8000, "one"), (8001, "two")].map(|(port, text)| PROXY.map(|host| pod.engine(host, port, text))).into();
        let proxy = asks_both(&client, (&pod, pod.proxy(&[])), PROXY);
        pod.run(move || drop(proxy));
        Ok(())
    });
}

#[test]
fn connections_of_tproxy_reach_servers_of_other_machines() {
    where_permitted("tproxy", || {
        let (client, router, far) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
        client.link(&router, "near", [CLIENT, PROXY]);
        router.link(&far, "far", [["10.9.1.1", "fd09:1::1"], BEHIND]);
        client.sh("ip route add default via 10.9.0.2; ip -6 route add default via fd09::2");
        for family in ["-4", "-6"] {
            router.sh(&format!(
                "ip {family} rule add fwmark 1 lookup 100; ip {family} route add local default dev lo table 100"
            ));
        }
        router.nft(
            "table inet gauge {
               chain in {
                 type filter hook prerouting priority mangle;
                 iifname near tcp dport {8000, 8001} tproxy to :8080 meta mark set 1 accept
               }
             }",
        );
        let _engines: Vec<_> =
            [(8000, "one"), (8001, "two")].map(|(port, text)| BEHIND.map(|host| far.engine(host, port, text))).into();
        let proxy = asks_both(&client, (&router, router.proxy(&[])), BEHIND);
        router.run(move || drop(proxy));
        Ok(())
    });
}

#[test]
fn clients_of_the_same_machine_are_redirected_and_the_proxy_is_not() {
    where_permitted("output", || {
        let machine = Namespace::new()?;
        machine.nft(
            "table inet gauge {
               chain out {
                 type nat hook output priority -100;
                 meta skgid != 65532 tcp dport {8000, 8001} redirect to :8080
               }
             }",
        );
        let hosts = ["127.0.0.1", "::1"];
        let _engines: Vec<_> = [(8000, "one"), (8001, "two")]
            .map(|(port, text)| hosts.map(|host| machine.engine(host, port, text)))
            .into();
        let program = machine.run(|| {
            let arguments = ["--transparent", "--listen=[::]:8080", "--admin=127.0.0.1:0"];
            Program::start(&arguments, |command| {
                command.gid(65532);
            })
        });
        for host in hosts {
            assert!(machine.ask(host, 8000).text().contains("one") && machine.ask(host, 8001).text().contains("two"));
        }
        machine.run(move || drop(program));
        Ok(())
    });
}

#[test]
fn a_rule_that_also_redirects_the_proxy_is_no_endless_loop() {
    where_permitted("loop", || {
        let machine = Namespace::new()?;
        machine.nft(
            "table inet gauge {
               chain out {
                 type nat hook output priority -100;
                 tcp dport 8000 redirect to :8080
               }
             }",
        );
        let engine = machine.engine("127.0.0.1", 8000, "one");
        let proxy = machine.proxy(&[]);
        let response = machine.ask("127.0.0.1", 8000);
        let why = response.field("x-streamgauge-error").unwrap();
        assert_eq!(response.status(), 508, "{why}");
        assert!(
            why.starts_with("proxy; the proxy's own connection to 127.0.0.1:8000 was redirected back to it"),
            "{why}"
        );
        assert_eq!(engine.connections(), 0);
        machine.run(move || assert_eq!((refused(&proxy, "loop"), refused(&proxy, "own_address")), (1.0, 0.0)));
        Ok(())
    });
}

#[test]
fn destinations_beyond_the_limit_are_refused() {
    where_permitted("limit", || {
        let (client, pod) = (Namespace::new()?, Namespace::new()?);
        client.link(&pod, "pod", [CLIENT, PROXY]);
        pod.nft(
            "table inet gauge {
               chain in { type nat hook prerouting priority dstnat; tcp dport {8000, 8001} redirect to :8080; }
             }",
        );
        let _engines = [(8000, "one"), (8001, "two")].map(|(port, text)| pod.engine(PROXY[0], port, text));
        let proxy = pod.proxy(&[("max_destinations", "1")]);
        assert_eq!(client.ask(PROXY[0], 8000).status(), 200);
        let second = client.ask(PROXY[0], 8001);
        assert_eq!(second.status(), 503);
        let why = "proxy; 1 destinations are in use, which is the limit (--max-destinations)";
        assert_eq!(second.field("x-streamgauge-error"), Some(why));
        pod.run(move || assert_eq!(refused(&proxy, "too_many_destinations"), 1.0));
        Ok(())
    });
}
