//! The wall clock of the proxies, which can jump: a small library that is loaded before the others.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// The compiled library, and the clock's current offset.
pub(crate) struct WallClock {
    folder: TempDir,
    offset: i64,
}

impl WallClock {
    /// Compiles the library.
    ///
    /// # Errors
    /// The reason why this machine cannot have it.
    pub(crate) fn new() -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chaos/clock.c");
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-O2", "-o"]).arg(folder.path().join("clock.so")).arg(source);
        let done = command.output().map_err(|error| format!("no C compiler: {error}"))?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        fs::write(folder.path().join("offset"), 0_i64.to_ne_bytes()).unwrap();
        Ok(Self { folder, offset: 0 })
    }

    pub(crate) fn environment(&self) -> [String; 2] {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        [format!("LD_PRELOAD={}", path("clock.so")), format!("SOAK_CLOCK={}", path("offset"))]
    }

    /// Moves the clock of all proxies by so many seconds.
    pub(crate) fn jump(&mut self, seconds: i64) {
        self.offset += seconds;
        let file = fs::OpenOptions::new().write(true).open(self.folder.path().join("offset")).unwrap();
        file.write_all_at(&self.offset.to_ne_bytes(), 0).unwrap();
    }
}
