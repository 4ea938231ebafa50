//! A scripted upstream: each connection runs a function on its own thread.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use socket2::SockRef;

use super::PATIENCE;

/// A scripted server. Each connection runs the script on a thread of its own.
pub struct Upstream {
    pub addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
}

/// One connection, with what the script needs.
pub struct Conn {
    pub stream: TcpStream,
    pub number: usize,
    seen: Vec<u8>,
    requests: Arc<Mutex<Vec<String>>>,
}

/// One request as it came over the wire.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// From the request line to the empty line.
    pub head: String,
    /// The payload, without its framing.
    pub body: Vec<u8>,
    /// The body as it came.
    pub raw_body: Vec<u8>,
}

impl Upstream {
    /// Starts an upstream; `script` gets every connection.
    pub fn start(script: impl Fn(Conn) + Send + Sync + 'static) -> Self {
        Self::listening(TcpListener::bind("127.0.0.1:0").unwrap(), script)
    }

    /// A collector: it answers every request with 200. Also returns the bodies that it has received, in one.
    pub fn collector() -> (Self, Arc<Mutex<Vec<u8>>>) {
        let bodies = Arc::<Mutex<Vec<u8>>>::default();
        let taken = Arc::clone(&bodies);
        let collector = Self::start(move |mut conn| {
            while let Some(request) = conn.request() {
                taken.lock().unwrap().extend(request.body);
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        });
        (collector, bodies)
    }

    /// An upstream whose kernel takes only 64 KiB of what the script does not read.
    pub fn with_small_buffer(script: impl Fn(Conn) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        SockRef::from(&listener).set_recv_buffer_size(64 << 10).unwrap();
        Self::listening(listener, script)
    }

    /// An upstream on a listener.
    pub fn listening(listener: TcpListener, script: impl Fn(Conn) + Send + Sync + 'static) -> Self {
        let addr = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (count, log, script) = (Arc::clone(&connections), Arc::clone(&requests), Arc::new(script));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                let (script, count, requests) = (Arc::clone(&script), Arc::clone(&count), Arc::clone(&log));
                std::thread::spawn(move || {
                    // The proxy tries whether the upstream can be reached; that is no connection for a script.
                    if matches!(stream.peek(&mut [0]), Ok(1)) {
                        let number = count.fetch_add(1, Ordering::SeqCst);
                        script(Conn { stream, number, seen: Vec::new(), requests });
                    }
                });
            }
        });
        Self { addr, connections, requests }
    }

    /// An upstream that answers every request on a connection with these bytes.
    pub fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |mut conn| {
            while conn.request().is_some() {
                conn.send(&answer);
            }
        })
    }

    /// How many connections it has had.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The heads of the requests it has had.
    pub fn heads(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Conn {
    /// The next request, whole; `None` when the client closed instead.
    pub fn request(&mut self) -> Option<Request> {
        let head = self.head()?;
        let mut request = Request { head, ..Request::default() };
        let field = |name: &str| field(&request.head, name).map(str::to_owned);
        if field("transfer-encoding").is_some() {
            loop {
                let line = self.line();
                let size = usize::from_str_radix(line.trim_end().split(';').next().unwrap(), 16).unwrap();
                request.raw_body.extend_from_slice(line.as_bytes());
                if size == 0 {
                    loop {
                        let line = self.line();
                        request.raw_body.extend_from_slice(line.as_bytes());
                        if line == "\r\n" {
                            break;
                        }
                    }
                    break;
                }
                let data = self.exactly(size + 2);
                request.body.extend_from_slice(&data[..size]);
                request.raw_body.extend_from_slice(&data);
            }
        } else if let Some(length) = field("content-length") {
            request.body = self.exactly(length.parse().unwrap());
            request.raw_body.clone_from(&request.body);
        }
        Some(request)
    }

    /// The next request's head; its body is left to be read.
    pub fn head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.seen.windows(4).position(|window| window == b"\r\n\r\n") {
                let head: Vec<u8> = self.seen.drain(..end + 4).collect();
                let head = String::from_utf8(head).unwrap();
                self.requests.lock().unwrap().push(head.clone());
                return Some(head);
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// So many bytes.
    pub fn exactly(&mut self, n: usize) -> Vec<u8> {
        while self.seen.len() < n {
            assert!(self.more(), "the proxy closed in the middle of a body");
        }
        self.seen.drain(..n).collect()
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.seen.iter().position(|byte| *byte == b'\n') {
                return String::from_utf8(self.seen.drain(..=end).collect()).unwrap();
            }
            assert!(self.more(), "the proxy closed in the middle of a line");
        }
    }

    fn more(&mut self) -> bool {
        let mut buffer = [0; 65_536];
        match self.stream.read(&mut buffer) {
            Ok(0) | Err(_) => false,
            Ok(n) => {
                self.seen.extend_from_slice(&buffer[..n]);
                true
            }
        }
    }

    /// Sends; a proxy that has closed is no reason to stop the script.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends one HTTP chunk.
    pub fn chunk(&mut self, payload: impl AsRef<[u8]>) -> bool {
        let payload = payload.as_ref();
        let framed = [format!("{:x}\r\n", payload.len()).as_bytes(), payload, b"\r\n"].concat();
        self.send(framed)
    }

    /// Waits until the proxy closes, if it does within [`PATIENCE`]; how long that took.
    pub fn closed(&mut self) -> Option<Duration> {
        let started_at = std::time::Instant::now();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Some(started_at.elapsed()),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Some(started_at.elapsed()),
                Err(_) => return None,
            }
        }
    }

    /// Closes with a reset.
    pub fn reset(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// The value of a field of a head.
pub fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

/// Reports what a script saw to the test, or what the test saw to a script.
pub fn reports<T: Send + 'static>()
-> (impl Fn(T) + Send + Sync + Clone + 'static, impl Fn() -> T + Send + Sync + 'static) {
    let (sender, receiver) = mpsc::channel();
    let (sender, receiver) = (Arc::new(Mutex::new(sender)), Mutex::new(receiver));
    let send = move |report| {
        let _test_is_over = sender.lock().unwrap().send(report).is_err();
    };
    // A script may itself wait until something is closed.
    (send, move || receiver.lock().unwrap().recv_timeout(2 * PATIENCE).expect("the script reports"))
}
