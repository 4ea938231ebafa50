//! The configuration file: any text is believed or refused in words, and what is believed, typed again as `--check`
//! prints it, gives the same configuration.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::config::{ConfigError, ConfigSource, LoadedConfig, RawSettings};

/// A file of this process's own.
static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("streamgauge-fuzz-{}.yaml", std::process::id())));

fuzz_target!(|text: &[u8]| {
    match load(&FILE, text) {
        Ok(loaded) => {
            let printed = loaded.config.explain(&loaded.settings);
            match load(&FILE, printed.as_bytes()) {
                Ok(again) => assert_eq!(again.config.settings(), loaded.config.settings(), "printed:\n{printed}"),
                Err(error) => panic!("{error}\nprinted:\n{printed}"),
            }
        }
        Err(error) => assert!(!error.to_string().trim().is_empty()),
    }
});

fn load(file: &Path, text: &[u8]) -> Result<LoadedConfig, ConfigError> {
    std::fs::write(file, text).expect("a temporary file can be written");
    let needed = [("STREAMGAUGE_UPSTREAM".to_owned(), "http://127.0.0.1:8000".to_owned())];
    ConfigSource::new(RawSettings::default(), Some(file.to_owned()), needed).load()
}
