//! What an upstream does, over both wires and in both eras, in memory and with a clock of our own.

mod calls;
mod life;
mod lists;
mod opening;
