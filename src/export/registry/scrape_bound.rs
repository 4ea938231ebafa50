//! The most that a scrape can hold: from the catalog, and from the limits of a configuration.
//!
//! The bound supposes that every model uses every class value, dialect, status and ending, so a real scrape is far below
//! it. It holds for the classic text, which is the largest format but for OpenMetrics' exemplars.

use super::aggregate::AggregateSettings;
use super::catalog::{Id, Instrument, InstrumentKind, TABLE, attribute};
use super::classes::max_sets;
use super::family::MAX_SERIES;
use super::thread_gauges::METHODS;
use crate::export::prometheus::name;
use crate::measure::dialect;
use crate::measure::request_class::{MAX_VALUE_BYTES, RequestClasses};

/// Bytes of a model name that the bound supposes. Names of public models are shorter.
pub const SUPPOSED_MODEL_BYTES: u64 = 64;
/// Values of a status, or of an error: those of three digits, and failures without a status.
const STATUSES: u64 = 520;
/// Values of a label of ours: each has fewer.
const OWN_VALUES: u64 = 12;
/// Bytes of the longest value of a label that neither a client nor the configuration names.
const VALUE_BYTES: u64 = 32;
/// Bytes of quotes, `=` and `,` of a label.
const LABEL_MARKS: u64 = 4;
/// Bytes of the longest number, of the name's suffix, and of a histogram's label `le`.
const LINE_REST: u64 = 64;

/// The most that a scrape can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrapeBound {
    /// Series as Prometheus counts them: one per bucket.
    pub series: u64,
    /// Size of the text.
    pub bytes: u64,
    /// Combinations of class values, by which each series with a model is divided; 1 without classes.
    pub class_sets: u64,
}

/// Computes the bound for these limits, SLOs and classes, and for one server or any number of them.
pub fn scrape_bound(settings: &AggregateSettings, classes: &RequestClasses, is_one_server: bool) -> ScrapeBound {
    let servers = if is_one_server { 1 } else { u64::from(MAX_SERIES) };
    let limits = ScrapeLimits { servers, ..ScrapeLimits::new(settings, classes) };
    let mut bound = ScrapeBound { series: 0, bytes: 0, class_sets: limits.class_sets };
    for (id, instrument) in Id::all().zip(TABLE).filter(|(_, instrument)| settings.exports(instrument)) {
        let (families, labels) = (limits.families(id, instrument), limits.label_bytes(id, instrument));
        let lines = match instrument.kind {
            InstrumentKind::Histogram(_) => {
                instrument.layout(&settings.slos).map_or(0, |layout| layout.bounds().len() as u64) + 3
            }
            _ => 1,
        };
        let name = name::sample(instrument).len() as u64;
        bound.series += families * lines;
        bound.bytes += families * lines * (name + labels + LINE_REST)
            + 2 * (name + LINE_REST)
            + instrument.description.len() as u64;
    }
    bound
}

/// Whether the aggregation limits the number of series and divides them by class. Gauges are read at the scrape; only
/// this one has a model.
fn is_aggregated(id: Id) -> bool {
    id != Id::ActiveStreams
}

fn is_divided(id: Id, instrument: &Instrument) -> bool {
    is_aggregated(id) && instrument.attributes.contains(&attribute::MODEL)
}

/// Numbers and sizes of values that a configuration decides.
struct ScrapeLimits {
    /// With `_other` and none.
    models: u64,
    servers: u64,
    slos: u64,
    /// Objectives of an SLO, with `error`.
    objectives: u64,
    slo_bytes: u64,
    class_sets: u64,
    class_bytes: u64,
}

impl ScrapeLimits {
    fn new(settings: &AggregateSettings, classes: &RequestClasses) -> Self {
        let slos = || settings.slos.iter();
        Self {
            models: settings.max_models as u64 + 2,
            servers: 1,
            slos: slos().count() as u64,
            objectives: slos().map(|slo| slo.objectives().count() as u64 + 1).max().unwrap_or(0),
            slo_bytes: slos().map(|slo| slo.name().len() as u64).max().unwrap_or(0),
            class_sets: max_sets(classes.iter().count(), settings.max_class_values),
            class_bytes: classes.iter().map(|class| label_bytes(class.name(), MAX_VALUE_BYTES as u64)).sum(),
        }
    }

    /// Combinations of label values. The last one of an aggregated instrument collects what is above its limit.
    fn families(&self, id: Id, instrument: &Instrument) -> u64 {
        let own = instrument.attributes.iter().map(|label| self.values(label)).fold(1, u64::saturating_mul);
        let divided = if is_divided(id, instrument) { own.saturating_mul(self.class_sets) } else { own };
        if is_aggregated(id) { divided.min(u64::from(MAX_SERIES) + 1) } else { divided }
    }

    fn values(&self, label: &str) -> u64 {
        let dialects = dialect::TABLE.len() as u64 + 1;
        match label {
            attribute::MODEL => self.models,
            "slo" => self.slos,
            "objective" => self.objectives,
            attribute::OPERATION | attribute::HTTP_ROUTE => dialects,
            attribute::SERVER_ADDRESS => self.servers,
            // The dialect decides it, or the configuration, or the server.
            attribute::PROVIDER | attribute::SERVER_PORT | attribute::URL_SCHEME => 1,
            attribute::TOKEN_MODALITY | "version" => 1,
            attribute::HTTP_METHOD => METHODS.len() as u64,
            attribute::HTTP_STATUS | attribute::ERROR_TYPE => STATUSES,
            _ => OWN_VALUES,
        }
    }

    fn label_bytes(&self, id: Id, instrument: &Instrument) -> u64 {
        let own = instrument.attributes.iter().map(|label| label_bytes(label, self.value_bytes(label)));
        own.sum::<u64>() + if is_divided(id, instrument) { self.class_bytes } else { 0 }
    }

    fn value_bytes(&self, label: &str) -> u64 {
        match label {
            attribute::MODEL | attribute::PROVIDER => SUPPOSED_MODEL_BYTES,
            attribute::HTTP_ROUTE | attribute::SERVER_ADDRESS => 2 * SUPPOSED_MODEL_BYTES,
            "slo" => self.slo_bytes,
            _ => VALUE_BYTES,
        }
    }
}

fn label_bytes(name: &str, value_bytes: u64) -> u64 {
    name.len() as u64 + value_bytes + LABEL_MARKS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::slo::Slos;

    fn bound(max_models: usize, slos: &[&str], classes: &[&str], max_class_values: usize) -> ScrapeBound {
        let slos = Slos::new(slos.iter().map(|text| text.parse().unwrap()).collect()).unwrap().into();
        let classes = RequestClasses::new(classes.iter().map(|text| text.parse().unwrap()).collect()).unwrap();
        let settings = AggregateSettings { slos, max_models, max_class_values, ..AggregateSettings::default() };
        scrape_bound(&settings, &classes, true)
    }

    #[test]
    fn fewer_models_and_fewer_slos_make_fewer_series() {
        let [one, few, many] = [1, 8, 64].map(|models| bound(models, &["chat: ttft<=1s"], &[], 20));
        assert!(one.series < few.series && few.series < many.series, "{one:?} {few:?} {many:?}");
        let two = bound(8, &["chat: ttft<=1s", "b: e2e<=1s"], &[], 20);
        assert!(bound(8, &[], &[], 20).series < few.series && few.series < two.series);
        let without_client = AggregateSettings { gen_ai_client: false, ..AggregateSettings::default() };
        let of = |settings| scrape_bound(settings, &RequestClasses::default(), true).series;
        assert!(of(&without_client) < of(&AggregateSettings::default()));
        assert!(many.bytes > 100 * many.series && many.bytes < 1_000 * many.series);
    }

    #[test]
    fn classes_multiply_the_series_up_to_the_limit_of_each_instrument() {
        let of = |classes: &[&str], values| bound(1, &[], classes, values);
        let (none, one, two) = (of(&[], 20), of(&["tier=header:a"], 20), of(&["tier=header:a", "team=header:b"], 20));
        assert_eq!([none, one, two].map(|bound| bound.class_sets), [1, 22, 484]);
        assert!(none.series < one.series && one.series < two.series, "{none:?} {one:?} {two:?}");
        assert!(of(&["tier=header:a"], 2).series < one.series);
        let most = of(&["a=header:a", "b=header:b", "c=header:c", "d=header:d"], 1_000);
        let lines = |instrument: &Instrument| instrument.layout(&Slos::default()).map_or(1, |it| it.bounds().len() + 3);
        let capped: usize = TABLE.iter().map(|instrument| lines(instrument) * (usize::from(MAX_SERIES) + 1)).sum();
        assert!(two.series <= most.series && most.series < capped as u64, "{most:?} {capped}");
    }

    #[test]
    fn any_number_of_servers_fills_an_instrument_with_their_address_and_no_other() {
        let (settings, classes) = (AggregateSettings::default(), RequestClasses::default());
        let [one, any] = [true, false].map(|is_one| ScrapeLimits {
            servers: if is_one { 1 } else { u64::from(MAX_SERIES) },
            ..ScrapeLimits::new(&settings, &classes)
        });
        let families = |limits: &ScrapeLimits, id: Id| limits.families(id, id.instrument());
        assert!(families(&one, Id::TimeToFirstToken) < families(&any, Id::TimeToFirstToken));
        assert_eq!(families(&any, Id::TimeToFirstToken), u64::from(MAX_SERIES) + 1);
        assert_eq!(families(&one, Id::Stalls), families(&any, Id::Stalls));
    }
}
