//! The core from outside: plain tests of one subject each, and random lives compared with a
//! reference model.

mod driver;
mod node;
mod reference;

mod allocation;
mod arising;
mod connections;
mod deadlock;
mod holding;
mod leaving;
mod legacy;
mod one_holder;
mod outside;
mod properties;
mod replaying;
mod replication_model;
mod serving;
mod several;
mod slices;
mod waiting;
mod wire;
