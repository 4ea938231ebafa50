//! The sizes of the pods' caches.

/// Cache sizes, in blocks.
#[derive(Clone, Debug, Default)]
pub struct CacheSizes {
    /// Size of the pods without one of their own; `None` if unknown.
    pub others: Option<usize>,
    /// Sizes by the pod's name, or by its owner: the capture or instance that its name begins with.
    pub of_pods: Vec<(String, usize)>,
}

impl CacheSizes {
    /// Whether a size is known.
    pub fn is_known(&self) -> bool {
        self.others.is_some() || !self.of_pods.is_empty()
    }

    /// All sizes.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.of_pods.iter().map(|(_, blocks)| *blocks).chain(self.others)
    }

    pub(super) fn of(&self, pod: &str) -> Option<usize> {
        self.of_pods.iter().find(|(name, _)| is_named(pod, name)).map(|(_, blocks)| *blocks).or(self.others)
    }

    /// A name that none of these pods has.
    pub(super) fn name_without_pod<'a>(&self, pods: impl Iterator<Item = &'a String> + Clone) -> Option<&str> {
        self.of_pods.iter().map(|(name, _)| &**name).find(|name| !pods.clone().any(|pod| is_named(pod, name)))
    }
}

/// Whether the name is the pod's, or its owner's.
fn is_named(pod: &str, name: &str) -> bool {
    pod.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}
