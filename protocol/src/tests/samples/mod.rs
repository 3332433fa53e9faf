//! Random values of every message, as one proptest strategy per variant in the order of the variants, which is their order on the
//! wire. Values need not make sense together (that is what `validate` is for), but each must survive the wire.

mod requests;
mod responses;
mod values;

use proptest::prelude::*;

pub(super) use requests::{admin_requests, envelope, file_requests, requests, session_requests};
pub(super) use responses::{
    admin_responses, file_responses, push, pushes, response, responses, session_responses,
};
pub(super) use values::{attributes, entry};

/// A strategy from one strategy per field, of a struct or of a variant with named fields.
macro_rules! fields {
    ($first:ident $(:: $second:ident)? { $($field:ident: $strategy:expr),+ $(,)? }) => {
        ($($strategy,)+).prop_map(|($($field,)+)| $first $(:: $second)? { $($field),+ }).boxed()
    };
}

use fields;

pub(super) type Samples<T> = Vec<BoxedStrategy<T>>;

fn any_of<T: std::fmt::Debug + 'static>(samples: Samples<T>) -> BoxedStrategy<T> {
    proptest::strategy::Union::new(samples).boxed()
}
