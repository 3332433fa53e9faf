//! The operations of [`crate::Model`], by what they change.

mod attributes;
mod data;
mod names;
mod rename;
#[cfg(test)]
mod tests;
