//! Servers that send nonsense.

use bytes::BytesMut;
use subvol_protocol::attributes::Lineage;
use subvol_protocol::error::ErrorCode;
use subvol_protocol::frame::{self, FrameType};
use subvol_protocol::response::{FileResponse, Response};
use subvol_protocol::{codec, token::Token};

use super::fake::{Act, Fake, quick_retries};
use super::soon;
use crate::{Client, ClientError};

async fn outcome_of(raw: Vec<u8>) -> ClientError {
    let fake = Fake::start(move |seen, _| match seen.file() {
        Some(_) => Act::Raw(raw.clone()),
        None => Act::Normal,
    });
    let volume = fake.volume_of(fake.builder().retries(quick_retries(3))).await;
    let error = soon(volume.statfs()).await.unwrap_err();
    assert!(fake.world.lock().connections <= 6, "bounded");
    assert_eq!(volume.inodes().channel.usage(), (0, 256));
    error
}

#[tokio::test]
async fn garbage_ends_in_an_error() {
    let error = outcome_of(b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(10)).await;
    assert!(
        matches!(&error, ClientError::Lost { cause, .. } if cause.contains("not a subvold frame")),
        "{error}"
    );
}

#[tokio::test]
async fn an_oversized_frame_is_refused_before_it_is_kept() {
    let mut bytes = BytesMut::new();
    frame::encode(&mut bytes, FrameType::Response, 1, b"", b"").unwrap();
    bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = outcome_of(bytes.to_vec()).await;
    assert!(
        matches!(&error, ClientError::Lost { cause, .. } if cause.contains("exceeds the limit")),
        "{error}"
    );
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_breaks_the_connection() {
    let mut bytes = BytesMut::new();
    let answer = Response::File(FileResponse::Done { ticket: Lineage::default() });
    codec::encode(&mut bytes, 0x77_0000, &answer, &[]).unwrap();
    let error = outcome_of(bytes.to_vec()).await;
    assert!(matches!(&error, ClientError::Lost { cause, .. } if cause.contains("not asked")), "{error}");
}

#[tokio::test]
async fn an_error_about_the_connection_is_passed_on() {
    let mut bytes = BytesMut::new();
    codec::encode(&mut bytes, 0, &Response::Error(ErrorCode::BadFrame.into()), &[]).unwrap();
    let error = outcome_of(bytes.to_vec()).await;
    assert!(
        matches!(&error, ClientError::Lost { cause, .. } if cause.contains("not a valid frame")),
        "{error}"
    );
}

#[tokio::test]
async fn an_answer_of_the_wrong_kind_fails_its_request_only() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "StatFs" => Act::Say(Response::File(FileResponse::Closed)),
        _ => Act::Normal,
    });
    let volume = fake.volume().await;
    assert!(matches!(soon(volume.statfs()).await, Err(ClientError::Protocol(_))));
    soon(volume.inodes().lookup(256, "a")).await.unwrap();
    assert_eq!(fake.world.lock().connections, 2);
}

#[tokio::test]
async fn a_compound_with_too_many_results_is_an_error() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "Compound" => Act::Say(Response::Compound { results: vec![Ok(FileResponse::Closed); 9] }),
        _ => Act::Normal,
    });
    let volume = fake.volume().await;
    let steps = vec![subvol_protocol::request::FileRequest::StatFs];
    assert!(matches!(soon(volume.compound(steps, bytes::Bytes::new())).await, Err(ClientError::Protocol(_))));
}

#[tokio::test]
async fn a_refusal_is_told_at_once_and_without_the_token() {
    let fake = Fake::start(|seen, _| match seen.name() {
        "Authenticate" => Act::Say(Response::Error(ErrorCode::NotAuthenticated.into())),
        _ => Act::Normal,
    });
    let builder = fake.builder().token(Token::new("sesame-sesame").unwrap());
    assert!(!format!("{builder:?}").contains("sesame"));
    let error = soon(builder.connect()).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotAuthenticated));
    assert!(!format!("{error:?} {error}").contains("sesame"));
    assert_eq!(fake.world.lock().connections, 1);
}

#[tokio::test]
async fn no_server_is_told_at_once() {
    let error = Client::builder("subvol+unix:///nowhere/at/all").unwrap().connect().await.unwrap_err();
    assert!(matches!(&error, ClientError::Io { .. }) && error.errno() == 2, "{error:?}");
    assert!(error.to_string().contains("check that the server runs"), "{error}");
}
