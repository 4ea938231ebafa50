//! Requests as tests make them, and what comes back.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::support::client::{Client, Response, chat};
use super::tools::program;

/// True if a GET is answered with 200. A starting server may close the connection or not answer.
pub(crate) fn is_up(address: SocketAddr, path: &str) -> bool {
    let status = || -> std::io::Result<[u8; 12]> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok(status)
    };
    status().is_ok_and(|status| status == *b"HTTP/1.1 200")
}

/// One GET on a connection of its own.
pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    get_with(address, path, "")
}

/// One GET with more header lines.
pub(crate) fn get_with(address: SocketAddr, path: &str, fields: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{fields}\r\n");
    Client::connect(address).send(request).response()
}

/// One POST of JSON on a connection of its own.
pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    Client::connect(address).send(request(path, body)).response()
}

/// A POST of JSON, as bytes.
pub(crate) fn request(path: &str, body: &Value) -> String {
    chat(&body.to_string()).replacen("/v1/chat/completions", path, 1)
}

/// The JSON of a response.
pub(crate) fn json(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap_or_else(|_| panic!("no JSON: {}", response.text()))
}

/// The JSON of every event of a stream, but for the closing `[DONE]`.
pub(crate) fn events(response: &Response) -> Vec<Value> {
    let text = response.text();
    let payloads = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|payload| *payload != "[DONE]");
    payloads.map(|payload| serde_json::from_str(payload).unwrap()).collect()
}

/// curl's stdout with these arguments.
pub(crate) fn curl(arguments: &[&str]) -> String {
    let mut command = program("curl");
    // No proxy of the environment comes between.
    command.env_clear().args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "20"]).args(arguments);
    let output = command.output().unwrap();
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "curl {arguments:?}: {}: {talk}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
