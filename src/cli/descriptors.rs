//! The limit on open descriptors.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one: the default is often 1,024, and a stream takes two.
pub(super) fn raise_fd_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // If that fails, the old limit stands; its consumers report a shortage.
        _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    }
}
