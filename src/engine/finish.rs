//! Why a sequence stopped.

/// The reason a sequence stopped, named as in vLLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineFinish {
    /// The model generated its end-of-sequence token.
    Stop,
    /// The sequence reached `max_tokens`.
    Length,
    /// The client disconnected.
    Abort,
    /// An injected engine failure.
    Error,
}

impl EngineFinish {
    /// All reasons, in the order of the `/metrics` page.
    pub const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    /// The name in responses and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}
