//! One page of a server, asked for once on a connection of its own.

use std::rc::Rc;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, HOST};
use http::{HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

use crate::net::io::Stamped;
use crate::replay::target::{Connector, Target};

/// Where servers have their figures, unless the URL says.
const USUAL_PATH: &str = "/metrics";

/// A page to be asked for.
#[derive(Clone)]
pub struct Page {
    /// Where it is; its path is the page's.
    pub target: Target,
    /// Further header lines, as (name, value). They may hold credentials: never to be written anywhere.
    pub fields: Vec<(String, String)>,
}

impl Page {
    /// The URL, as it is shown.
    pub fn url(&self) -> String {
        let Target { tls, .. } = &self.target;
        format!("{}://{}{}", if *tls { "https" } else { "http" }, self.target.authority(), self.path())
    }

    fn path(&self) -> &str {
        if self.target.base.is_empty() { USUAL_PATH } else { &self.target.base }
    }

    /// The text of the page, of `most` bytes at most. Has to be called on a local runtime.
    ///
    /// # Errors
    /// Why there is none, in words; nothing that the server wrote is in them.
    pub(in crate::replay) async fn ask(
        &self,
        connector: &Connector,
        format: &str,
        most: usize,
    ) -> Result<String, String> {
        let io = connector.connect().await.map_err(|error| format!("cannot connect: {error}"))?;
        let talk = |error: hyper::Error| format!("the connection broke: {error}");
        let io = TokioIo::new(Stamped::new(io, Vec::new(), Rc::default()));
        let (mut sender, connection) = handshake::<_, Empty<Bytes>>(io).await.map_err(talk)?;
        // Ends with this, whatever becomes of the answer.
        let mut driven = JoinSet::new();
        driven.spawn_local(connection);
        let (head, body) = sender.send_request(self.request(format)).await.map_err(talk)?.into_parts();
        if !head.status.is_success() {
            return Err(format!("answered {}", head.status.as_u16()));
        }
        if head.headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
            return Err("answered in a coding that was not asked for".to_owned());
        }
        let body = Limited::new(body, most).collect().await.map_err(|error| {
            match error.downcast_ref::<LengthLimitError>() {
                Some(_) => format!("the page is larger than {} MiB", most >> 20),
                None => format!("the connection broke: {error}"),
            }
        })?;
        Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
    }

    fn request(&self, format: &str) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        // A path of a URL is one of a request.
        *request.uri_mut() = self.path().parse().unwrap_or_default();
        let own =
            [(HOST, self.target.authority()), (ACCEPT, format.to_owned()), (ACCEPT_ENCODING, "identity".to_owned())];
        let given = self.fields.iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.clone())));
        for (name, value) in own.into_iter().chain(given) {
            let name: HeaderName = name;
            if let Ok(value) = HeaderValue::try_from(value) {
                request.headers_mut().insert(name, value);
            }
        }
        request
    }
}
