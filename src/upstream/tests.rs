//! What an upstream does, over every wire and in both eras, in memory and with a clock of our own.

mod calls;
mod doing;
mod life;
mod links;
mod lists;
mod opening;
mod pair;
mod questions;
mod room;
mod rules;
mod sleeping;
mod subscriptions;
