//! Cores that never sleep.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLockWriteGuard};
use std::thread::JoinHandle;

use thread_priority::ThreadPriority;
use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

use super::processes::exclusive_turn;

/// A turn alone on cores that do not sleep, for tests of how long an engine takes.
pub(crate) fn timed_turn() -> (AwakeCores, RwLockWriteGuard<'static, ()>) {
    let turn = exclusive_turn();
    (AwakeCores::start(), turn)
}

/// Keeps every core busy with a thread of idle priority, which any other thread preempts at once.
///
/// A core of a virtual machine that sleeps may be given away and wake late, and it sleeps more under a light load than
/// under a heavy one. The twin's errors were smaller with cores that do not sleep (src/twin/README.md).
pub(crate) struct AwakeCores {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl AwakeCores {
    fn start() -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = |_| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
                set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle).unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..cores).map(spin).collect();
        Self { is_over, threads }
    }
}

impl Drop for AwakeCores {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}
