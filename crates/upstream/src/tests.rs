//! Tests of upstreams over every transport and in both eras, in memory and with a paused clock.

mod accounts;
mod calls;
mod doing;
mod ends;
mod life;
mod links;
mod lists;
mod logs;
mod lost_sessions;
mod opening;
mod pair;
mod questions;
mod room;
mod rules;
mod sign_in;
mod sleeping;
mod subscriptions;
mod trace;
