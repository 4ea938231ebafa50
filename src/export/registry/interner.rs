//! Attribute values of series, and the integers that represent them while counting.

use std::borrow::Cow;
use std::sync::Arc;

use ahash::AHashMap;

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LabelValue {
    /// A string.
    Text(Arc<str>),
    /// A number.
    Int(i64),
    /// A boolean.
    Bool(bool),
}

impl From<&str> for LabelValue {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

/// One attribute of a series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    /// OpenTelemetry name.
    pub name: Cow<'static, str>,
    /// Value.
    pub value: LabelValue,
}

/// Represents a [`LabelValue`]; the default represents an absent one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::export) struct Symbol(u32);

/// Maximum number of attributes of an instrument.
pub(in crate::export) const MAX_ATTRIBUTES: usize = 6;

/// All attribute values in use. It only grows, so callers must limit values that outsiders can choose
/// ([`AdmittedModels`](super::models::AdmittedModels)).
#[derive(Debug, Default)]
pub(in crate::export) struct Interner {
    values: Vec<LabelValue>,
    texts: AHashMap<Arc<str>, Symbol>,
    numbers: AHashMap<i64, Symbol>,
    bools: [Symbol; 2],
}

impl Interner {
    pub(in crate::export) fn text(&mut self, text: &str) -> Symbol {
        if let Some(sym) = self.texts.get(text) {
            return *sym;
        }
        let text: Arc<str> = text.into();
        let sym = self.add(LabelValue::Text(Arc::clone(&text)));
        self.texts.insert(text, sym);
        sym
    }

    pub(in crate::export) fn number(&mut self, number: i64) -> Symbol {
        if let Some(sym) = self.numbers.get(&number) {
            return *sym;
        }
        let sym = self.add(LabelValue::Int(number));
        self.numbers.insert(number, sym);
        sym
    }

    pub(in crate::export) fn bool_value(&mut self, truth: bool) -> Symbol {
        if self.bools[usize::from(truth)] == Symbol::default() {
            self.bools[usize::from(truth)] = self.add(LabelValue::Bool(truth));
        }
        self.bools[usize::from(truth)]
    }

    /// Returns the value of a symbol.
    pub(in crate::export) fn value(&self, sym: Symbol) -> Option<&LabelValue> {
        self.values.get((sym.0 as usize).checked_sub(1)?)
    }

    fn add(&mut self, value: LabelValue) -> Symbol {
        self.values.push(value);
        Symbol(self.values.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_one_symbol_and_kinds_do_not_mix() {
        let mut symbols = Interner::default();
        let syms = [symbols.text("1"), symbols.number(1), symbols.bool_value(true), symbols.text("true")];
        assert_eq!(syms, [symbols.text("1"), symbols.number(1), symbols.bool_value(true), symbols.text("true")]);
        let values: Vec<_> = syms.iter().map(|sym| symbols.value(*sym).unwrap().clone()).collect();
        assert_eq!(values, ["1".into(), LabelValue::Int(1), LabelValue::Bool(true), "true".into()]);
        assert_eq!(symbols.value(Symbol::default()), None);
    }
}
