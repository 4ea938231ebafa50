//! The walk over one JSON text against serde_json. Valid JSON is walked to equal values. A walked text is valid JSON,
//! except the inside of its numbers and strings, which the walk does not check.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use streamgauge_fuzz::measure::json_walker::{FieldState, JsonWalker};

/// The walk goes no deeper; serde_json does.
const MAX_DEPTH: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let parsed = serde_json::from_slice::<Value>(bytes).ok().filter(|value| depth(value) <= MAX_DEPTH);
    let Some(mut walk) = JsonWalker::new(bytes) else {
        assert_eq!(parsed, None, "what is JSON is text");
        return;
    };
    let (mut skip, mut show) = (walk.clone(), walk.clone());
    let walked = Plain::default().value(bytes, &mut walk).and_then(|plain| walk.end().map(|()| plain));
    match (parsed, walked) {
        (Some(parsed), Some(walked)) => assert_eq!(walked.value, Some(parsed)),
        (Some(parsed), None) => panic!("not walked: {parsed}"),
        (None, Some(walked)) => {
            let plain: Value = serde_json::from_slice(&walked.text).expect("the structure is that of JSON");
            drop(plain);
        }
        (None, None) => {}
    }
    let skipped = skip.skip().and_then(|()| skip.end()).is_some();
    let shown = show.shown().and_then(|shown| show.end().map(|()| shown));
    assert_eq!(skipped, shown.is_some(), "what can be skipped can be shown");
    if let Some(FieldState::String(inside)) = shown {
        assert_eq!((bytes[inside.start - 1], bytes[inside.end]), (b'"', b'"'));
    }
});

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(entries) => 1 + entries.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Result of a walk: the value, unless it contains an invalid number or string, and the text with those replaced.
#[derive(Default)]
struct Plain {
    value: Option<Value>,
    text: Vec<u8>,
    copied: usize,
}

impl Plain {
    fn value(mut self, bytes: &[u8], walk: &mut JsonWalker<'_>) -> Option<Self> {
        self.value = self.take(bytes, walk)?;
        self.text.extend_from_slice(&bytes[self.copied..]);
        Some(self)
    }

    /// Takes one value; `None` inside where serde_json would not.
    fn take(&mut self, bytes: &[u8], walk: &mut JsonWalker<'_>) -> Option<Option<Value>> {
        let start = walk.position();
        match bytes.get(start)? {
            b'{' => {
                let mut fields = Some(Map::new());
                walk.object(|key, walk| {
                    let after = walk.position();
                    let end = bytes[..after].iter().rposition(|byte| *byte == b'"')?;
                    let key = self.string(bytes, end - key.len() - 1, end + 1);
                    let value = self.take(bytes, walk)?;
                    match (&mut fields, key, value) {
                        (Some(fields), Some(Value::String(key)), Some(value)) => drop(fields.insert(key, value)),
                        _ => fields = None,
                    }
                    Some(())
                })?;
                Some(fields.map(Value::Object))
            }
            b'[' => {
                let mut entries = Some(Vec::new());
                walk.array(|walk| {
                    match (&mut entries, self.take(bytes, walk)?) {
                        (Some(entries), Some(value)) => entries.push(value),
                        _ => entries = None,
                    }
                    Some(())
                })?;
                Some(entries.map(Value::Array))
            }
            b'"' => {
                let end = start + walk.raw()?.len();
                Some(self.string(bytes, start, end))
            }
            _ => {
                let raw = walk.raw()?;
                let value = serde_json::from_str(raw).ok();
                if value.is_none() {
                    self.replace(bytes, start, start + raw.len(), b"0");
                }
                Some(value)
            }
        }
    }

    fn string(&mut self, bytes: &[u8], start: usize, end: usize) -> Option<Value> {
        let value = serde_json::from_slice(&bytes[start..end]).ok();
        if value.is_none() {
            self.replace(bytes, start, end, b"\"\"");
        }
        value
    }

    fn replace(&mut self, bytes: &[u8], start: usize, end: usize, with: &[u8]) {
        self.text.extend_from_slice(&bytes[self.copied..start]);
        self.text.extend_from_slice(with);
        self.copied = end;
    }
}
