//! One timer for many waits.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::clock::Clock;
use crate::measure::time::Stamp;

/// Armed for the earliest of the waits and looked at when it rings, so that a request does not pay for one of its own.
#[derive(Default)]
pub(super) struct Timer(Option<Armed>);

struct Armed {
    at: Stamp,
    sleep: Pin<Box<dyn Future<Output = ()>>>,
}

impl Timer {
    /// Ready when `deadline` has passed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, deadline: Stamp) -> Poll<()> {
        loop {
            match &mut self.0 {
                Some(armed) if armed.at <= deadline => {
                    ready!(armed.sleep.as_mut().poll(cx));
                    let rang = armed.at;
                    self.0 = None;
                    if rang >= deadline {
                        return Poll::Ready(());
                    }
                }
                _ => {
                    let sleep = async move { Clock::Monotonic.sleep_until(deadline).await };
                    self.0 = Some(Armed { at: deadline, sleep: Box::pin(sleep) });
                }
            }
        }
    }
}
