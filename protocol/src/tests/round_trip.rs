//! Every message comes back as it was sent, also when frames arrive in pieces; cut or extended bodies are refused.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::{body_of, samples};
use crate::attributes::ATTRIBUTES_LENGTH;
use crate::codec::{self, CodecError, Message, ServerMessage, decode_body};
use crate::frame::{self, DecodeLimits, Frame, FrameDecoder, FrameError, FrameType};
use crate::request::RequestEnvelope;
use crate::response::{FileResponse, Response};

fn frame_of<M: Message>(id: u64, message: &M, payload: &[u8]) -> Frame {
    let mut buffer = BytesMut::new();
    codec::encode(&mut buffer, id, message, payload).expect("a sample fits a frame");
    let frame = FrameDecoder::new(DecodeLimits::FULL).decode(&mut buffer).expect("sound").expect("complete");
    assert!(buffer.is_empty());
    assert_eq!((frame.header.request_id, &frame.payload[..]), (id, payload));
    frame
}

proptest! {
    #[test]
    fn requests_come_back(sent in samples::envelope(), id: u64, payload in prop::collection::vec(any::<u8>(), 0..99)) {
        let frame = frame_of(id, &sent, &payload);
        prop_assert_eq!(codec::decode::<RequestEnvelope>(&frame), Ok(sent));
        prop_assert_eq!(codec::decode_from_server(frame), Err(CodecError::UnexpectedType(FrameType::Request)));
    }

    #[test]
    fn responses_come_back(sent in samples::response(), id: u64, payload in prop::collection::vec(any::<u8>(), 0..99)) {
        let frame = frame_of(id, &sent, &payload);
        prop_assert_eq!(codec::decode::<RequestEnvelope>(&frame), Err(CodecError::UnexpectedType(FrameType::Response)));
        let payload = Bytes::from(payload);
        prop_assert_eq!(
            codec::decode_from_server(frame),
            Ok(ServerMessage::Response { request_id: id, response: sent, payload })
        );
    }

    #[test]
    fn pushes_come_back(sent in samples::push()) {
        prop_assert_eq!(codec::decode_from_server(frame_of(0, &sent, &[])), Ok(ServerMessage::Push(sent)));
    }

    /// A body is the message, the whole message and nothing but the message.
    #[test]
    fn cut_and_extended_bodies_are_refused(sent in samples::envelope(), answered in samples::response()) {
        let (request, response) = (body_of(&sent), body_of(&answered));
        for cut in 0..request.len() {
            prop_assert!(decode_body::<RequestEnvelope>(&request[..cut]).is_err(), "cut at {}", cut);
        }
        for cut in 0..response.len() {
            prop_assert!(decode_body::<Response>(&response[..cut]).is_err(), "cut at {}", cut);
        }
        let longer = [&request[..], &[0]].concat();
        prop_assert_eq!(decode_body::<RequestEnvelope>(&longer), Err(CodecError::TrailingBytes(1)));
    }

    /// Frames of a stream are found wherever the pieces it arrives in begin and end, under both ways of reserving.
    #[test]
    fn a_stream_in_pieces_gives_the_same_frames(
        frames in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..60), 0..3000usize), 1..6),
        pieces in prop::collection::vec(1..1500usize, 1..20),
        reserve_whole: bool,
    ) {
        let mut stream = BytesMut::new();
        for (id, body, payload) in &frames {
            frame::encode(&mut stream, FrameType::Request, *id, body, &vec![7; *payload]).expect("within limits");
        }
        let mut decoder = FrameDecoder::new(DecodeLimits { reserve_whole, ..DecodeLimits::FULL });
        let (mut buffer, mut decoded) = (BytesMut::new(), Vec::new());
        for piece in pieces.iter().cycle() {
            if stream.is_empty() {
                break;
            }
            let piece = stream.split_to((*piece).min(stream.len()));
            buffer.extend_from_slice(&piece);
            while let Some(frame) = decoder.decode(&mut buffer).expect("sound") {
                decoded.push((frame.header.request_id, frame.body.to_vec(), frame.payload.len()));
            }
        }
        prop_assert_eq!(decoded, frames);
        prop_assert!(buffer.is_empty());
    }

    #[test]
    fn an_entry_knows_its_length(entry in samples::entry(), attributes in samples::attributes()) {
        let of = |entries| body_of(&Response::File(FileResponse::Directory { entries, end: true })).len();
        prop_assert_eq!(of(vec![entry.clone()]) - of(vec![]), entry.encoded_length());
        prop_assert_eq!(body_of(&Response::File(FileResponse::Attributes { attributes })).len(), 8 + ATTRIBUTES_LENGTH);
    }

    /// Header and body are under the checksum: no flipped bit turns a frame into another frame.
    #[test]
    fn a_flipped_bit_is_noticed(body in prop::collection::vec(any::<u8>(), 0..60), id: u64, at: prop::sample::Index, bit in 0..8u8) {
        let mut buffer = BytesMut::new();
        frame::encode(&mut buffer, FrameType::Response, id, &body, &[]).expect("within limits");
        let at = at.index(buffer.len());
        buffer[at] ^= 1 << bit;
        match FrameDecoder::new(DecodeLimits::FULL).decode(&mut buffer) {
            // Only a length that grew: the frame is not complete. More bytes would lead to the error.
            Ok(None) => {
                prop_assert!((16..24).contains(&at));
                buffer.resize(2 * 1024 * 1024, 0);
                prop_assert_eq!(FrameDecoder::new(DecodeLimits::FULL).decode(&mut buffer), Err(FrameError::BadChecksum));
            }
            Ok(Some(_)) => prop_assert!(false, "a damaged frame was accepted"),
            Err(_) => {}
        }
    }
}
