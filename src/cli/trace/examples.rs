//! Examples of `streamgauge trace` and its verbs, and the flags that `-h` shows.

use crate::cli::verb_help::VerbHelp;

pub(in crate::cli) const HELP: VerbHelp = VerbHelp {
    flags: &[],
    examples: &[
        DESCRIBE,
        TO_MOONCAKE,
        (
            "Double the traffic of the second ten minutes",
            "streamgauge trace cut day.jsonl --from 10m --to 20m \\
      | streamgauge trace scale - --rate 2x -o busy.jsonl",
        ),
        SHARE,
    ],
};

const DESCRIBE: (&str, &str) = ("Describe a trace", "streamgauge trace info conversation_trace.jsonl");
const TO_MOONCAKE: (&str, &str) =
    ("Convert a capture, to replay it with AIPerf", "streamgauge trace convert capture/ --to mooncake -o trace.jsonl");
const SHARE: (&str, &str) = (
    "Make a trace that can be published",
    "streamgauge trace anonymize capture/ --round-time 100ms \\
      --round-length 16 -o shared.jsonl",
);

/// The help of every verb below `trace`.
pub(in crate::cli) const SUBVERBS: [(&str, VerbHelp); 11] = [
    (
        "reuse",
        VerbHelp {
            flags: &["server-metrics", "cache-blocks", "cache-tokens", "by", "json", "html"],
            examples: &[
                (
                    "Find where cache hits of two pods with 8,000 blocks each are lost",
                    "streamgauge trace reuse pod-a/ pod-b/ --cache-blocks 8000",
                ),
                (
                    "Read the size of each pod's cache from its engine",
                    "streamgauge trace reuse pod-a/ pod-b/ \\\n      --server-metrics pod-a/=http://a:8000 \\\n      --server-metrics pod-b/=http://b:8000",
                ),
                (
                    "Draw the losses of each pod and hour",
                    "streamgauge trace reuse capture/ --cache-tokens 128000 --html > reuse.html",
                ),
                (
                    "Compare models and hours",
                    "streamgauge trace reuse capture/ --cache-tokens 128000 \\\n      --by model,hour",
                ),
            ],
        },
    ),
    (
        "info",
        VerbHelp {
            flags: &["input-format", "cache-blocks", "cache-tokens", "json"],
            examples: &[
                DESCRIBE,
                (
                    "Predict the hit rate of a cache of 100,000 blocks",
                    "streamgauge trace info conversation_trace.jsonl --cache-blocks 100000",
                ),
                ("Print figures for a script", "streamgauge trace info capture/ --json | jq ."),
            ],
        },
    ),
    (
        "convert",
        VerbHelp {
            flags: &["from", "to", "output", "whole-turns", "columns"],
            examples: &[
                TO_MOONCAKE,
                (
                    "Convert a public trace to our format, compressed",
                    "streamgauge trace convert conversation_trace.jsonl -o trace.jsonl.zst",
                ),
                ("Name the input format", "streamgauge trace convert day.csv --from burstgpt -o day.jsonl"),
                (
                    "Name the columns of any CSV or JSON Lines",
                    "streamgauge trace convert day.csv --columns time=t,input=prompt -o day.jsonl",
                ),
            ],
        },
    ),
    (
        "cut",
        VerbHelp {
            flags: &["from", "to", "models", "class", "output"],
            examples: &[
                ("Keep the second ten minutes", "streamgauge trace cut day.jsonl --from 10m --to 20m -o part.jsonl"),
                (
                    "Keep the requests for some models",
                    "streamgauge trace cut day.jsonl --models 'llama-*,qwen' -o part.jsonl",
                ),
                ("Describe the first hour", "streamgauge trace cut day.jsonl --to 1h | streamgauge trace info -"),
            ],
        },
    ),
    (
        "scale",
        VerbHelp {
            flags: &["rate", "isl", "osl", "models", "class", "output"],
            examples: &[
                ("Double the traffic", "streamgauge trace scale day.jsonl --rate 2x -o busy.jsonl"),
                (
                    "Double the requests of one class only",
                    "streamgauge trace scale day.jsonl --rate 2x --class tier=batch -o busy.jsonl",
                ),
                ("Keep a quarter of the sessions", "streamgauge trace scale day.jsonl --rate 0.25x -o quiet.jsonl"),
                (
                    "Shorten prompts and responses for a small server",
                    "streamgauge trace scale day.jsonl --isl 0.0625x --osl 0.5x -o small.jsonl",
                ),
            ],
        },
    ),
    (
        "shift",
        VerbHelp {
            flags: &["by", "models", "class", "output"],
            examples: &[
                (
                    "Move a class of batch jobs one hour later",
                    "streamgauge trace shift day.jsonl --by 1h --class tier=batch -o moved.jsonl",
                ),
                (
                    "Add an agent workload from the second hour on",
                    "streamgauge trace shift agents.jsonl --by 1h -o later.jsonl
    streamgauge trace merge day.jsonl later.jsonl --from-start -o both.jsonl",
                ),
            ],
        },
    ),
    (
        "merge",
        VerbHelp {
            flags: &["from-start", "output", "output-format"],
            examples: &[
                ("Merge two captures by wall-clock time", "streamgauge trace merge gateway-1/ gateway-2/ -o all.jsonl"),
                (
                    "Overlay two traces that start together",
                    "streamgauge trace merge chat.jsonl code.jsonl --from-start -o all.jsonl",
                ),
                ("Sort the rows of one trace by time", "streamgauge trace merge day.jsonl -o sorted.jsonl"),
            ],
        },
    ),
    (
        "anonymize",
        VerbHelp {
            flags: &["round-time", "round-length", "output"],
            examples: &[
                SHARE,
                ("Replace ids and model names only", "streamgauge trace anonymize capture/ -o shared.jsonl"),
            ],
        },
    ),
    (
        "spread",
        VerbHelp {
            flags: &["grid", "seed", "output"],
            examples: &[
                ("Spread arrivals; detect the interval", "streamgauge trace spread day.jsonl -o smooth.jsonl"),
                (
                    "Spread timestamps that were rounded to 3 s",
                    "streamgauge trace spread day.jsonl --grid 3s -o smooth.jsonl",
                ),
            ],
        },
    ),
    (
        "diff",
        VerbHelp {
            flags: &["input-format", "json"],
            examples: &[
                ("Compare a trace with its replay", "streamgauge trace diff trace.jsonl run1"),
                ("Print the differences as JSON", "streamgauge trace diff day.jsonl scaled.jsonl --json"),
            ],
        },
    ),
    (
        "schema",
        VerbHelp {
            flags: &[],
            examples: &[("Write the schema to a file", "streamgauge trace schema > trace.schema.json")],
        },
    ),
];
