//! One page of a server that is read again and again.

use std::sync::Arc;

use bytes::Bytes;
use rustls::ClientConfig;

use super::http_fetch::{FetchError, FetchRequest, fetch};
use crate::clock::Clock;
use crate::measure::time::Gap;
use crate::net::tls::describe_error;
use crate::replay::sender::target::{TargetConnector, TargetUrl};

/// A page and how to reach it.
pub struct PageClient {
    target: TargetUrl,
    connector: TargetConnector,
    timeout: Gap,
    path: String,
    fields: Vec<(String, String)>,
}

impl PageClient {
    /// `timeout` limits each read, with its connection. Each request has these header fields, which may hold credentials. TLS serves `https` targets only.
    pub fn new(
        target: TargetUrl,
        tls: Option<Arc<ClientConfig>>,
        timeout: Gap,
        path: &str,
        fields: Vec<(String, String)>,
    ) -> Self {
        let tls = tls.filter(|_| target.tls);
        let connector = TargetConnector::new(target.clone(), tls, timeout);
        let path = format!("{}{path}", target.base);
        Self { target, connector, timeout, path, fields }
    }

    /// Reads the page, of at most `most` bytes, within the timeout. Needs a `LocalRuntime`.
    ///
    /// # Errors
    /// The reason, with a remedy if one is known.
    pub async fn fetch(&self, most: usize) -> Result<Bytes, String> {
        let Self { target, timeout, path, fields, .. } = self;
        let request = FetchRequest { target, path, accept: "application/json", fields, body: None };
        match Clock::Monotonic.timeout(*timeout, fetch(&self.connector, request, most)).await {
            None => Err(format!("no reply within {timeout}")),
            Some(Ok(page)) => Ok(page),
            Some(Err(FetchError::Status(status))) => Err(match status.as_u16() {
                401 => "answered 401: it asks for a token".to_owned(),
                403 => "answered 403: the token opens other pages only, or a client certificate is needed".to_owned(),
                421 => "answered 421: its admin_hosts has not this name".to_owned(),
                other => format!("answered {other}"),
            }),
            Some(Err(error)) => Err(describe_error(error, "--ca")),
        }
    }
}
