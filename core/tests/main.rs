//! The core from outside: plain tests of one subject each, and random lives compared with a reference model.

mod driver;
mod node;
mod reference;

mod lock;
mod properties;
mod several;
mod table;
mod waiting;
mod wire;
