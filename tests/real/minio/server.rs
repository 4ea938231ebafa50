//! MinIO, and what a test asks it besides the program: over curl, which signs requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::http_client::curl;
use crate::processes::{ChildProcess, MINUTE, SOON, address, until};
use crate::tools;

/// Both parts of the credentials: neither may ever be written or shown.
pub(crate) const KEY: &str = "canary-key-of-the-bucket";
pub(crate) const SECRET: &str = "canary-secret-of-the-bucket";
/// Every object that is stored under one key is a version of its own in a bucket with versions, as all are here.
pub(crate) const BUCKET: &str = "lake";

/// A server with one bucket.
pub(crate) struct Minio {
    folder: TempDir,
    pub(crate) addr: SocketAddr,
    running: Option<ChildProcess>,
}

impl Minio {
    pub(crate) fn start() -> Self {
        let mut minio = Self { folder: TempDir::new().unwrap(), addr: address(), running: None };
        minio.run();
        // It keeps every version of an object, so a replaced one would be seen. A server that starts refuses for a moment.
        until("there is a bucket", MINUTE, || {
            let locked = ["--header", "x-amz-bucket-object-lock-enabled: true"];
            minio.try_ask("PUT", &format!("/{BUCKET}"), &locked).0 == 200
        });
        minio
    }

    /// Starts the process, on the data that an earlier one has left.
    pub(crate) fn run(&mut self) {
        self.running = Some(tools::minio(self.addr, self.folder.path(), [KEY, SECRET]));
    }

    pub(crate) fn kill(&mut self) {
        let mut running = self.running.take().unwrap();
        running.signal(Signal::SIGKILL);
        running.ended(SOON).unwrap();
    }

    /// Forbids to replace or remove an object for a day, also to the owner of the bucket.
    pub(crate) fn retain(&self) {
        let rule = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>\
            <Mode>COMPLIANCE</Mode><Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>";
        // Without these headers curl sends no digest of the body, which the server refuses.
        let digests = "printf %s \"$0\" | openssl md5 -binary | base64; printf %s \"$0\" | sha256sum | cut -c1-64";
        let digests = Command::new("sh").args(["-c", digests, rule]).output().unwrap().stdout;
        let digests = String::from_utf8(digests).unwrap();
        let (md5, sha256) = digests.trim().split_once('\n').unwrap();
        let (md5, sha256) = (format!("Content-MD5: {md5}"), format!("x-amz-content-sha256: {sha256}"));
        let body = ["--header", &md5, "--header", &sha256, "--data-binary", rule];
        self.ask("PUT", &format!("/{BUCKET}?object-lock="), &body);
    }

    /// Sends a signed request, and returns the body of its answer, which has to be a success.
    pub(crate) fn ask(&self, method: &str, path: &str, more: &[&str]) -> String {
        let (status, body) = self.try_ask(method, path, more);
        assert_eq!(status / 100, 2, "{method} {path}: {status}: {body}");
        body
    }

    pub(crate) fn try_ask(&self, method: &str, path: &str, more: &[&str]) -> (u16, String) {
        let (user, url) = (format!("{KEY}:{SECRET}"), format!("http://{}{path}", self.addr));
        let signed = ["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &user, "--request", method, &url];
        let answer = curl(&[&signed[..], &["--write-out", "\n%{http_code}"], more].concat());
        let (body, status) = answer.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    /// The objects, with the number of versions that each has.
    pub(crate) fn versions(&self) -> BTreeMap<String, usize> {
        let mut found = BTreeMap::new();
        let mut after = String::new();
        loop {
            let page = self.ask("GET", &format!("/{BUCKET}?{after}max-keys=1000&versions="), &[]);
            assert!(!page.contains("<DeleteMarker>"), "{page}");
            let part = |text: &str, name: &str| {
                text.split(&format!("<{name}>")).nth(1).map(|rest| rest.split('<').next().unwrap().to_owned())
            };
            for version in page.split("<Version>").skip(1) {
                *found.entry(part(version, "Key").unwrap()).or_insert(0) += 1;
            }
            let Some(key) = part(&page, "NextKeyMarker") else { return found };
            let version = part(&page, "NextVersionIdMarker").unwrap_or_default();
            after = format!("key-marker={}&version-id-marker={version}&", key.replace('/', "%2F").replace('=', "%3D"));
        }
    }

    /// Variables of a process that uses the bucket, over `endpoint`.
    pub(crate) fn variables(endpoint: SocketAddr) -> [(&'static str, String); 4] {
        [
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://{endpoint}")),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
    }

    /// The rows below a prefix or of a pattern, as `trace convert` reads them from the bucket.
    pub(crate) fn rows(&self, prefix: &str) -> Vec<Value> {
        let out = tempfile::tempdir().unwrap();
        let file: PathBuf = out.path().join("rows.jsonl");
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        command.args(["trace", "convert", &format!("s3://{BUCKET}/{prefix}"), "--to", "streamgauge", "--output"]);
        let output = command.arg(&file).envs(Self::variables(self.addr)).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !stderr.contains("damage"), "{stderr}");
        let text = std::fs::read_to_string(file).unwrap();
        text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}
