//! What the engine's tests share: a small server without threads, a checker of everything on the device, and the loop
//! that crashes a program wherever it can crash.
#![allow(dead_code, reason = "every test binary uses its own part of this")]

pub mod check;
pub mod crash;
pub mod look;
pub mod machine;
pub mod operate;
pub mod translate;
