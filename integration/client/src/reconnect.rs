//! Waits between attempts, which failures are worth another attempt, and the greeting of a new connection.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use subvol_protocol::attributes::Lineage;
use subvol_protocol::codec::ServerMessage;
use subvol_protocol::error::{ErrorCode, Retry, WireError};
use subvol_protocol::limits::{OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, ServerLimits};
use subvol_protocol::name::{Label, Text};
use subvol_protocol::request::{Features, FileRequest, Request, SessionRequest, VolumeRef};
use subvol_protocol::response::{FileResponse, Push, RecallTarget, Response, SessionResponse};
use tokio::time::{Instant, timeout};

use crate::config::{Retries, Settings};
use crate::error::{ClientError, Result};
use crate::limits::MAX_EVENTS;
use crate::wire::Wire;

/// What the server told about itself, the caller and the volume.
#[derive(Clone, Debug)]
pub(crate) struct Greeting {
    pub server_epoch: u64,
    pub limits: ServerLimits,
    pub tenant: Option<Label>,
    pub admin: bool,
    pub subvolume: u64,
    pub root: u64,
    pub lineage: Lineage,
    pub read_only: bool,
    pub leases: Option<LeaseTerms>,
    /// Recalls that came in before the driver took over.
    pub recalls: Recalls,
}

/// Numbers of recalls, with what they name.
pub(crate) type Recalls = Vec<(u64, Vec<RecallTarget>)>;

/// What the server granted to a connection that asked for leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Answers may be kept until they are recalled. Otherwise everything has to be asked for again each time; locks work either way.
    pub granted: bool,
    /// Time for the answer to a recall; who is later is cut off.
    pub recall: Duration,
    /// Silence of the server after which everything kept is lost.
    pub silence: Duration,
    /// The server remembers this client: its inodes and locks are still held.
    pub resumed: bool,
    /// When it was asked for.
    pub(crate) asked: Instant,
}

/// The wait before attempt number `attempt` (from 1): doubling, bounded, between half and all of it by chance.
pub(crate) fn wait_before(retries: &Retries, attempt: u32, chance: u32) -> Duration {
    let doubled = retries.first_wait.saturating_mul(1 << attempt.saturating_sub(1).min(20));
    let whole = doubled.min(retries.longest_wait);
    whole / 2 + (whole / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

/// Random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| ClientError::Argument(format!("the system gives no random numbers: {error}")))?;
    Ok(bytes)
}

/// Whether another attempt to connect can end differently.
pub(crate) fn is_transient(error: &ClientError) -> bool {
    match error {
        ClientError::Io { .. } | ClientError::Timeout { .. } | ClientError::Protocol(_) => true,
        ClientError::Server(error) => error.code.retry() != Retry::Never,
        _ => false,
    }
}

/// Connects, introduces itself, authenticates, attaches. `known` is the greeting of the connection before.
///
/// # Errors
/// The server's refusal, or what went wrong on the way; [`ClientError::Timeout`] if it took longer than allowed.
pub(crate) async fn establish(
    settings: &Settings,
    client_id: [u8; 16],
    known: Option<&Greeting>,
) -> Result<(Wire, Greeting)> {
    let allowed = settings.timeouts.connect;
    match timeout(allowed, greet(settings, client_id, known)).await {
        Ok(result) => result,
        Err(_) => Err(ClientError::Timeout { operation: "Connecting", after: allowed, changing: false }),
    }
}

async fn greet(
    settings: &Settings,
    client_id: [u8; 16],
    known: Option<&Greeting>,
) -> Result<(Wire, Greeting)> {
    let leases = settings.leases && settings.attach.is_some();
    let mut wire = Wire::connect(&settings.address).await?;
    let hello = SessionRequest::Hello {
        protocol_version: PROTOCOL_VERSION,
        features: if leases { Features::LEASES } else { Features::NONE },
        client_id,
        client_name: Text::new(&settings.client_name),
    };
    let SessionResponse::HelloOk { version, server_epoch, limits, .. } = ask(&mut wire, 1, hello).await?
    else {
        return Err(ClientError::unexpected("Hello"));
    };
    if !(OLDEST_PROTOCOL_VERSION..=PROTOCOL_VERSION).contains(&version) {
        return Err(ClientError::Server(ErrorCode::UnsupportedVersion.into()));
    }
    let mut greeting = Greeting {
        server_epoch,
        limits: sound(limits)?,
        tenant: None,
        admin: false,
        subvolume: 0,
        root: 0,
        lineage: Lineage::default(),
        read_only: false,
        leases: None,
        recalls: Recalls::new(),
    };
    let credentials = SessionRequest::Authenticate { credentials: settings.credentials.clone() };
    let SessionResponse::AuthOk { tenant, admin } = ask(&mut wire, 2, credentials).await? else {
        return Err(ClientError::unexpected("Authenticate"));
    };
    (greeting.tenant, greeting.admin) = (tenant, admin);
    if let Some(attachment) = &settings.attach {
        // By number once it is known: a new volume of the same name must not take the writes meant for the old one.
        let volume = known.map_or_else(|| attachment.volume.clone(), |known| VolumeRef::Id(known.subvolume));
        let request = SessionRequest::Attach {
            volume,
            tenant: attachment.tenant.clone(),
            read_only: attachment.read_only,
        };
        match ask(&mut wire, 3, request).await? {
            SessionResponse::Attached { subvolume, root, lineage, read_only, .. } if root != 0 => {
                greeting = Greeting { subvolume, root, lineage, read_only, ..greeting };
            }
            _ => return Err(ClientError::unexpected("Attach")),
        }
        if settings.leases {
            begin_leases(&mut wire, &mut greeting).await?;
        }
    }
    Ok((wire, greeting))
}

/// Asks for leases, before anything else is asked.
async fn begin_leases(wire: &mut Wire, greeting: &mut Greeting) -> Result<()> {
    let asked = Instant::now();
    let request = Request::File(FileRequest::BeginLeases);
    match exchange(wire, 4, request, &mut greeting.recalls).await? {
        // Without any patience for silence nothing could ever be kept.
        Response::File(FileResponse::LeasesBegun {
            granted,
            recall_milliseconds,
            silence_milliseconds,
            resumed,
        }) if silence_milliseconds > 0 => {
            let recall = Duration::from_millis(recall_milliseconds.into());
            let silence = Duration::from_millis(silence_milliseconds.into());
            greeting.leases = Some(LeaseTerms { granted, recall, silence, resumed, asked });
            Ok(())
        }
        _ => Err(ClientError::unexpected("BeginLeases")),
    }
}

/// Limits of zero would make the client wait for ever; limits above the protocol's would make it send what cannot be encoded.
fn sound(limits: ServerLimits) -> Result<ServerLimits> {
    let full = ServerLimits::FULL;
    let limits = ServerLimits {
        max_body: limits.max_body.min(full.max_body),
        max_payload: limits.max_payload.min(full.max_payload),
        max_in_flight: limits.max_in_flight.min(full.max_in_flight),
        max_compound_steps: limits.max_compound_steps.min(full.max_compound_steps),
        operation_window: limits.operation_window.min(full.operation_window),
    };
    if limits.max_payload == 0 || limits.max_in_flight == 0 || limits.operation_window == 0 {
        return Err(ClientError::Protocol("a limit in the server's hello is 0".into()));
    }
    Ok(limits)
}

/// Sends one session request and waits for its answer.
async fn ask(wire: &mut Wire, request_id: u64, request: SessionRequest) -> Result<SessionResponse> {
    match exchange(wire, request_id, Request::Session(request), &mut Recalls::new()).await? {
        Response::Session(answer) => Ok(answer),
        _ => Err(ClientError::unexpected("A session request")),
    }
}

/// Sends one request and waits for its answer; what is recalled meanwhile goes to `recalls`.
async fn exchange(
    wire: &mut Wire,
    request_id: u64,
    request: Request,
    recalls: &mut Recalls,
) -> Result<Response> {
    let envelope = request.into();
    wire.queue(request_id, &envelope, &Bytes::new())
        .map_err(|error| ClientError::Argument(error.to_string()))?;
    poll_fn(|context| wire.poll_write(context)).await?;
    loop {
        while let Some(received) = wire.next_frame()? {
            match received.message.map_err(|error| ClientError::Protocol(error.to_string()))? {
                ServerMessage::Push(Push::Shutdown { reason, .. }) => {
                    return Err(WireError::new(ErrorCode::ShuttingDown, reason.as_str()).into());
                }
                ServerMessage::Push(Push::Recall { recall, targets }) => {
                    recalls.push((recall, targets));
                    if recalls.len() >= MAX_EVENTS {
                        return Err(ClientError::Protocol("more recalls than there can be leases".into()));
                    }
                }
                ServerMessage::Response { response: Response::Error(error), .. } => return Err(error.into()),
                ServerMessage::Response { request_id: id, response, .. } if id == request_id => {
                    return Ok(response);
                }
                ServerMessage::Response { .. } => return Err(ClientError::unexpected("A session request")),
            }
        }
        poll_fn(|context| wire.poll_read(context)).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_within_bounds_and_differ_by_chance() {
        let retries = Retries::default();
        assert_eq!(wait_before(&retries, 1, u32::MAX), retries.first_wait);
        assert_eq!(wait_before(&retries, 2, u32::MAX), 2 * retries.first_wait);
        assert_eq!(wait_before(&retries, 2, 0), retries.first_wait);
        for attempt in [20, 1000, u32::MAX] {
            assert_eq!(wait_before(&retries, attempt, u32::MAX), retries.longest_wait);
        }
    }
}
