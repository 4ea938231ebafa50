//! The client over HTTP/2: one thread; each connection carries several requests at a time, and none is retried.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use h2::client::SendRequest;
use streamgauge::clock::Clock;
use streamgauge::measure::time::Gap;
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::client::{Plan, Tally, Work};
use crate::response::{Failure, Response};
use crate::script::{now, request_body};

/// Windows of the client, in bytes: more than all replies under way, so that no peer waits for them.
const WINDOW_BYTES: u32 = 16 << 20;

/// Time beyond the planned load after which a run fails, in nanoseconds.
const SILENCE: u64 = 10_000_000_000;

/// Planned time of a load that is given by its number of requests, in nanoseconds.
const MAX_COUNTED_LOAD: u64 = 60_000_000_000;

/// Executes the plan with `streams` concurrent requests on each connection.
///
/// # Errors
/// When the target cannot be connected to, speaks no HTTP/2, or falls silent.
pub(crate) fn drive(plan: &Plan, streams: usize) -> Result<Tally> {
    let (left, ends) = match plan.work {
        Work::OneEach => (plan.connections * streams, u64::MAX),
        Work::For(nanos) => (usize::MAX, now() + nanos),
        Work::Total(n) => (n, u64::MAX),
    };
    let planned = if let Work::For(nanos) = plan.work { nanos } else { MAX_COUNTED_LOAD };
    let load = Rc::new(Load {
        target: plan.target,
        uri: format!("http://{}/v1/chat/completions", plan.target),
        body: Bytes::from(request_body(0)),
        plan: plan.clone(),
        left: Cell::new(left),
        ends,
        tally: RefCell::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let connections = async {
        let mut tasks = Vec::new();
        for _ in 0..plan.connections {
            tasks.push(tokio::task::spawn_local(Rc::clone(&load).connection(streams)));
        }
        for task in tasks {
            task.await??;
        }
        anyhow::Ok(())
    };
    LocalSet::new().block_on(&runtime, async {
        let ended = Clock::Monotonic.timeout(Gap::from_nanos(planned + SILENCE), connections).await;
        ended.context("requests wait, and nothing comes")?
    })?;
    Ok(load.tally.take())
}

struct Load {
    target: SocketAddr,
    uri: String,
    body: Bytes,
    plan: Plan,
    /// Requests that may still be sent.
    left: Cell<usize>,
    ends: u64,
    tally: RefCell<Tally>,
}

impl Load {
    fn is_over(&self) -> bool {
        self.left.get() == 0 || now() >= self.ends
    }

    /// One connection after the other, until the load is over.
    async fn connection(self: Rc<Self>, streams: usize) -> Result<()> {
        while !self.is_over() {
            let socket = TcpStream::connect(self.target).await?;
            socket.set_nodelay(true)?;
            let mut builder = h2::client::Builder::new();
            builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES).enable_push(false);
            let (sender, connection) = builder.handshake(socket).await.context("the peer speaks no HTTP/2")?;
            let driver = tokio::task::spawn_local(async move {
                // Its streams report what went wrong with it.
                let _ended = connection.await.is_ok();
            });
            let replies = self.tally.borrow().requests;
            let mut tasks = Vec::new();
            for _ in 0..streams {
                tasks.push(tokio::task::spawn_local(Rc::clone(&self).requests(sender.clone())));
            }
            for task in tasks {
                task.await?;
            }
            driver.abort();
            ensure!(self.is_over() || self.tally.borrow().requests > replies, "a connection took no request");
        }
        Ok(())
    }

    /// One request after the other, until the load is over or the connection is.
    async fn requests(self: Rc<Self>, sender: SendRequest<Bytes>) {
        while !self.is_over() {
            let Ok(mut sender) = sender.clone().ready().await else { return };
            self.left.set(self.left.get().saturating_sub(1));
            self.tally.borrow_mut().requests += 1;
            let outcome = self.exchange(&mut sender).await;
            let mut tally = self.tally.borrow_mut();
            match outcome {
                Ok(()) => tally.events += self.plan.reply.script.events,
                Err(failure) => *tally.failures.entry(failure).or_default() += 1,
            }
        }
    }

    async fn exchange(&self, sender: &mut SendRequest<Bytes>) -> Result<(), Failure> {
        let request = http::Request::post(&self.uri)
            .header("accept", "*/*")
            .header("user-agent", "side-by-side")
            .header("content-type", "application/json")
            .header("content-length", self.body.len())
            .body(())
            .map_err(|_| Failure::Unreadable)?;
        let (head, mut body) = sender.send_request(request, false).map_err(|_| Failure::NoReply)?;
        body.send_data(self.body.clone(), true).map_err(|_| Failure::NoReply)?;
        let reply = head.await.map_err(|_| Failure::NoReply)?;
        if reply.status() != 200 {
            return Err(Failure::Refused(reply.status().as_u16()));
        }
        let mut reply = reply.into_body();
        let mut response = Response::default();
        while let Some(data) = reply.data().await {
            let data = data.map_err(|_| Failure::CutOff)?;
            response.take_data(&data, &mut |_| ());
            // Fails only where the stream has ended already.
            let _released = reply.flow_control().release_capacity(data.len()).is_ok();
        }
        let expected = &self.plan.reply;
        let whole = response.events == expected.all_events && response.payload == expected.payload;
        if whole { Ok(()) } else { Err(Failure::Altered) }
    }
}
