//! The orders in which locks are listed.

/// What comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Sort {
    /// The longest wait.
    #[default]
    Wait,
    /// The most waiters.
    Waiters,
    /// The longest hold.
    Held,
    /// The lease that ends next.
    Lease,
    /// The highest fence: the latest grant.
    Fence,
    Name,
}

impl Sort {
    pub const ALL: [Self; 6] = [
        Self::Wait,
        Self::Waiters,
        Self::Held,
        Self::Lease,
        Self::Fence,
        Self::Name,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Waiters => "waiters",
            Self::Held => "held",
            Self::Lease => "lease",
            Self::Fence => "fence",
            Self::Name => "name",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.word() == word)
    }

    pub fn next(self) -> Self {
        let place = Self::ALL.iter().position(|sort| *sort == self);
        place.map_or(Self::Wait, |place| Self::ALL[(place + 1) % Self::ALL.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_has_a_name_and_a_successor() {
        let mut sort = Sort::default();
        for _ in Sort::ALL {
            assert_eq!(Sort::named(sort.word()), Some(sort));
            sort = sort.next();
        }
        assert_eq!(sort, Sort::default());
        assert_eq!(Sort::named("else"), None);
    }
}
