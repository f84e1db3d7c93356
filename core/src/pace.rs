//! How much background work is done between two readings of the clock.

use crate::time::Micros;

/// A step that takes less than this is followed by a larger one.
const QUICK: Micros = Micros(20);

/// The size of the steps of one kind of work. The first one is small: while a child of the server
/// saves, each page that is changed is copied first, and the end of one lease may take 0.1 ms
/// instead of 3 µs.
#[derive(Debug)]
pub struct Pace {
    step: usize,
    least: usize,
    largest: usize,
}

impl Pace {
    /// Begins with a step of one, and makes none larger than `largest`.
    #[must_use]
    pub fn up_to(largest: usize) -> Self {
        Self {
            step: 1,
            least: 1,
            largest,
        }
    }

    /// Steps of the same size, however long they take: for the test that counts what they need.
    #[must_use]
    pub fn always(size: usize) -> Self {
        Self {
            step: size,
            least: size,
            largest: size,
        }
    }

    /// The size of the next step.
    #[must_use]
    pub fn step(&self) -> usize {
        self.step
    }

    /// The step took this long.
    pub fn took(&mut self, time: Micros) {
        let next = if time < QUICK {
            self.step * 2
        } else {
            self.step / 2
        };
        self.step = next.clamp(self.least, self.largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_while_they_are_quick_and_shrink_when_they_are_not() {
        let mut pace = Pace::up_to(8);
        let mut steps_of = |time| {
            [(); 5].map(|()| {
                pace.took(Micros(time));
                pace.step()
            })
        };
        assert_eq!(steps_of(5), [2, 4, 8, 8, 8]);
        assert_eq!(steps_of(100), [4, 2, 1, 1, 1]);
    }
}
