//! What `redlock top` shows, and what a key does.

use std::sync::Arc;

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::sort::Sort;
use crate::watch::{LONGEST_FILTER, Query, Seen};

/// What is on the screen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    List,
    /// The filter is being typed.
    Filter,
    /// One lock, by its id.
    Detail(u64),
    /// Asks whether to release a lock by force.
    Confirm(u64),
    Help,
}

/// What to do after a key.
#[derive(PartialEq, Eq, Debug)]
pub enum Action {
    None,
    Quit,
    Interrupt,
    Suspend,
    /// The terminal must be drawn again completely.
    Redraw,
    /// Release this lock by force.
    Force(Arc<[u8]>),
}

/// The state of the screen.
pub struct App {
    pub query: Query,
    pub mode: Mode,
    /// The lock that the cursor is on, by its id.
    pub selected: Option<u64>,
    /// The place of the cursor in the list, and the first place on the screen.
    pub cursor: usize,
    pub first: usize,
    /// How many locks the screen has room for.
    pub room: usize,
    /// How many locks match the filter.
    pub matching: usize,
    /// How far one lock is scrolled.
    pub scrolled: usize,
    pub message: Option<String>,
    /// From where the question was asked.
    before: Mode,
}

impl App {
    pub fn new(sort: Sort, filter: String) -> Self {
        Self {
            query: Query { sort, filter },
            mode: Mode::List,
            selected: None,
            cursor: 0,
            first: 0,
            room: 1,
            matching: 0,
            scrolled: 0,
            message: None,
            before: Mode::List,
        }
    }

    /// Shows a message until the next key.
    pub fn show_message(&mut self, message: String) -> Action {
        self.message = Some(message);
        Action::None
    }

    pub fn event(&mut self, event: Event, seen: &Seen) -> Action {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.key(key, seen),
            Event::Resize(..) => Action::None,
            _ => Action::None,
        }
    }

    fn key(&mut self, key: KeyEvent, seen: &Seen) -> Action {
        self.message = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Interrupt,
                KeyCode::Char('z') => Action::Suspend,
                KeyCode::Char('l') => Action::Redraw,
                _ => Action::None,
            };
        }
        match self.mode.clone() {
            Mode::List => self.list_key(key.code),
            Mode::Filter => self.filter_key(key.code),
            Mode::Detail(id) => self.detail_key(key.code, id),
            Mode::Confirm(id) => self.confirm_key(key.code, id, seen),
            Mode::Help => self.back(),
        }
    }

    fn list_key(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Down | KeyCode::Char('j') => self.go(self.cursor.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.go(self.cursor.saturating_sub(1)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.go(self.cursor + self.room),
            KeyCode::PageUp => self.go(self.cursor.saturating_sub(self.room)),
            KeyCode::Home | KeyCode::Char('g') => self.go(0),
            KeyCode::End | KeyCode::Char('G') => self.go(usize::MAX),
            KeyCode::Char('s') => {
                self.query.sort = self.query.sort.next();
                self.go(0);
            }
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Esc => self.query.filter.clear(),
            KeyCode::Enter => {
                self.scrolled = 0;
                self.mode = self.selected.map_or(Mode::List, Mode::Detail);
            }
            KeyCode::Char('f') => self.ask(self.selected),
            #[cfg(debug_assertions)]
            KeyCode::Char('!') if std::env::var_os("REDLOCK_TEST_PANIC").is_some() => {
                panic!("asked for by a test")
            }
            _ => {}
        }
        Action::None
    }

    /// Puts the cursor at a place; the drawing keeps it within the list.
    fn go(&mut self, place: usize) {
        self.cursor = place;
        self.selected = None;
    }

    fn filter_key(&mut self, code: KeyCode) -> Action {
        let filter = &mut self.query.filter;
        match code {
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                filter.clear();
                self.mode = Mode::List;
            }
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Char(c) if filter.len() + c.len_utf8() <= LONGEST_FILTER => filter.push(c),
            _ => {}
        }
        self.go(0);
        Action::None
    }

    fn detail_key(&mut self, code: KeyCode, id: u64) -> Action {
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => self.mode = Mode::List,
            KeyCode::Down | KeyCode::Char('j') => self.scrolled += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Char('f') => self.ask(Some(id)),
            _ => {}
        }
        Action::None
    }

    fn ask(&mut self, id: Option<u64>) {
        if let Some(id) = id {
            self.before = self.mode.clone();
            self.mode = Mode::Confirm(id);
        }
    }

    /// Only y releases; every other key does not.
    fn confirm_key(&mut self, code: KeyCode, id: u64, seen: &Seen) -> Action {
        self.mode = self.before.clone();
        let lock = seen.locks.get(id);
        match (code, lock) {
            (KeyCode::Char('y'), Some(lock)) => {
                self.message = Some("releasing…".to_owned());
                Action::Force(Arc::clone(&lock.key))
            }
            _ => self.show_message("nothing was changed".to_owned()),
        }
    }

    fn back(&mut self) -> Action {
        self.mode = Mode::List;
        Action::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Locks;
    use redislock_client::Moment;
    use std::time::Duration;

    fn seen() -> Seen {
        let mut locks = Locks::default();
        locks.found(b"nightly".as_slice().into(), 0);
        Seen {
            started: Moment::now(),
            interval: Duration::from_millis(500),
            rounds: 1,
            updated: Moment::now(),
            nodes: Vec::new(),
            quorum: 1,
            is_cluster: false,
            problem: None,
            locks,
        }
    }

    fn press(app: &mut App, code: KeyCode) -> Action {
        let event = Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
        app.event(event, &seen())
    }

    #[test]
    fn only_y_releases_by_force() {
        let mut app = App::new(Sort::Wait, String::new());
        app.selected = Some(0);
        for other in [KeyCode::Enter, KeyCode::Char('n'), KeyCode::Char('Y')] {
            assert_eq!(press(&mut app, KeyCode::Char('f')), Action::None);
            assert_eq!(app.mode, Mode::Confirm(0));
            assert_eq!(press(&mut app, other), Action::None, "{other:?}");
            assert_eq!(app.mode, Mode::List);
        }
        press(&mut app, KeyCode::Char('f'));
        let key: Arc<[u8]> = b"nightly".as_slice().into();
        assert_eq!(press(&mut app, KeyCode::Char('y')), Action::Force(key));
    }

    #[test]
    fn letters_of_a_filter_are_not_commands() {
        let mut app = App::new(Sort::Wait, String::new());
        press(&mut app, KeyCode::Char('/'));
        for c in "quiffs".chars() {
            assert_eq!(press(&mut app, KeyCode::Char(c)), Action::None);
        }
        press(&mut app, KeyCode::Backspace);
        press(&mut app, KeyCode::Enter);
        assert_eq!(
            (app.mode.clone(), &*app.query.filter),
            (Mode::List, "quiff")
        );
        assert_eq!(press(&mut app, KeyCode::Char('q')), Action::Quit);
    }

    #[test]
    fn nothing_is_released_without_a_lock_under_the_cursor() {
        let mut app = App::new(Sort::Wait, String::new());
        press(&mut app, KeyCode::Char('f'));
        assert_eq!(app.mode, Mode::List);
    }
}
