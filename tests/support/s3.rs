//! An S3 server in this process, whose faults are exact: which attempt fails, at which byte, and what is stored by then.
//!
//! It knows what an upload needs: a put that creates (`If-None-Match: *`), the size of an object, and its bytes.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::upstream::{Conn, Upstream, field};

/// Fault of one put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum S3Fault {
    /// It is answered with this status and code; nothing is stored.
    Refused(u16, &'static str),
    /// The connection is reset when this many bytes of the body have come; nothing is stored.
    ResetAt(usize),
    /// The object is stored, and the connection is reset in place of the answer.
    AnswerLost,
    /// The object is stored, and the answer comes so much later.
    Slow(Duration),
}

/// One put.
#[derive(Clone, Debug)]
pub struct S3Put {
    pub at: Instant,
    /// Name of the object, without its folder.
    pub name: String,
    /// Status of the answer; `None` if there was none.
    pub status: Option<u16>,
}

/// The server.
pub struct S3Server {
    pub addr: SocketAddr,
    store: Arc<Mutex<Store>>,
    _upstream: Upstream,
}

#[derive(Default)]
struct Store {
    objects: BTreeMap<String, Vec<u8>>,
    faults: VecDeque<S3Fault>,
    puts: Vec<S3Put>,
}

impl S3Server {
    /// A server whose first puts have these faults.
    pub fn with_faults(faults: &[S3Fault]) -> Self {
        let store = Arc::new(Mutex::new(Store { faults: faults.iter().copied().collect(), ..Store::default() }));
        let shared = Arc::clone(&store);
        let upstream = Upstream::start(move |conn| serve(conn, &shared));
        Self { addr: upstream.addr, store, _upstream: upstream }
    }

    /// Variables of a process that uses it.
    pub fn variables<'a>(endpoint: &'a str, secret: &'a str) -> [(&'static str, &'a str); 4] {
        [
            ("AWS_ACCESS_KEY_ID", secret),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ALLOW_HTTP", "true"),
        ]
    }

    /// Stores an object that others have made.
    pub fn store(&self, key: &str, bytes: &[u8]) {
        self.store.lock().unwrap().objects.insert(key.to_owned(), bytes.to_vec());
    }

    /// Takes all further faults back.
    pub fn heal(&self) {
        self.store.lock().unwrap().faults.clear();
    }

    /// The puts so far.
    pub fn puts(&self) -> Vec<S3Put> {
        self.store.lock().unwrap().puts.clone()
    }

    /// Objects by key, `bucket/…`.
    pub fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        self.store.lock().unwrap().objects.clone()
    }

    /// Writes every object into a folder.
    pub fn write_to(&self, folder: &Path) {
        for (key, bytes) in self.objects() {
            fs::write(folder.join(key.rsplit('/').next().unwrap()), bytes).unwrap();
        }
    }
}

fn serve(mut conn: Conn, store: &Mutex<Store>) {
    while let Some(head) = conn.head() {
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap().to_owned(), words.next().unwrap().trim_start_matches('/'));
        let key = path.replace("%3D", "=");
        assert!(field(&head, "authorization").is_some_and(|value| value.starts_with("AWS4-HMAC-SHA256 ")), "{head}");
        let length = field(&head, "content-length").map_or(0, |length| length.parse().unwrap());
        if method != "PUT" {
            let _body = conn.exactly(length);
            let object = store.lock().unwrap().objects.get(&key).cloned();
            send_object(&mut conn, &method, &head, object);
            continue;
        }
        assert_eq!(field(&head, "if-none-match"), Some("*"), "no put may replace an object: {head}");
        let fault = store.lock().unwrap().faults.pop_front();
        let put = S3Put { at: Instant::now(), name: key.rsplit('/').next().unwrap().to_owned(), status: None };
        if let Some(S3Fault::ResetAt(bytes)) = fault {
            assert!(bytes < length, "the body of {length} bytes has no byte {bytes}");
            let _part = conn.exactly(bytes);
            store.lock().unwrap().puts.push(put);
            return conn.reset();
        }
        let body = conn.exactly(length);
        let answer = match fault {
            Some(S3Fault::Refused(status, code)) => (status, code),
            _ => store.lock().unwrap().create(key, body),
        };
        let status = (fault != Some(S3Fault::AnswerLost)).then_some(answer.0);
        store.lock().unwrap().puts.push(S3Put { status, ..put });
        match fault {
            Some(S3Fault::AnswerLost) => return conn.reset(),
            Some(S3Fault::Slow(delay)) => std::thread::sleep(delay),
            _ => {}
        }
        send(&mut conn, answer);
    }
}

impl Store {
    fn create(&mut self, key: String, body: Vec<u8>) -> (u16, &'static str) {
        if self.objects.contains_key(&key) {
            return (412, "PreconditionFailed");
        }
        self.objects.insert(key, body);
        (200, "")
    }
}

fn send(conn: &mut Conn, (status, code): (u16, &str)) {
    let body = if code.is_empty() { String::new() } else { format!("<Error><Code>{code}</Code></Error>") };
    conn.send(format!("HTTP/1.1 {status} S\r\nETag: \"e\"\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
}

fn send_object(conn: &mut Conn, method: &str, head: &str, object: Option<Vec<u8>>) {
    let Some(object) = object else {
        // The answer to a HEAD has no body.
        conn.send("HTTP/1.1 404 S\r\nContent-Length: 0\r\n\r\n");
        return;
    };
    let date = "Last-Modified: Thu, 26 Nov 2026 10:00:00 GMT\r\nETag: \"e\"";
    let size = object.len();
    if method == "HEAD" {
        conn.send(format!("HTTP/1.1 200 S\r\n{date}\r\nContent-Length: {size}\r\n\r\n"));
        return;
    }
    let range = field(head, "range").unwrap().strip_prefix("bytes=").unwrap();
    let (start, end) = range.split_once('-').unwrap();
    let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
    let length = end + 1 - start;
    let range = format!("Content-Range: bytes {start}-{end}/{size}");
    conn.send(format!("HTTP/1.1 206 S\r\n{date}\r\n{range}\r\nContent-Length: {length}\r\n\r\n"));
    conn.send(&object[start..=end]);
}
