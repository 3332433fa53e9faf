//! Session requests: hello, who are you, which volume, are you there, goodbye. Handled one at a time, in their order.

use super::Attached;
use super::connection::{Connection, Flow};
use crate::limits::{REFUSAL_DELAY, REFUSALS_MAX, SERVER_LIMITS};
use crate::registry::Unavailable;
use crate::tenants::Identity;
use subvol_protocol::error::{ErrorCode, WireError};
use subvol_protocol::limits::{OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION};
use subvol_protocol::name::Label;
use subvol_protocol::request::{Credentials, Features, SessionRequest, VolumeRef};
use subvol_protocol::response::{Response, SessionResponse};

impl Connection {
    /// Answers a session request, or tells what must follow it.
    pub(super) async fn session_request(&mut self, request_id: u64, request: SessionRequest) -> Flow {
        let greeted = matches!(request, SessionRequest::Hello { .. });
        if greeted == self.greeted {
            self.session.reply_error(request_id, ErrorCode::OutOfOrder);
            return Flow::Continue;
        }
        let answer = match request {
            SessionRequest::Hello { protocol_version, features, client_name, client_id } => {
                // Without it `BeginLeases` is refused.
                if features.contains(Features::LEASES) {
                    let _ = self.session.client_id.set(client_id);
                }
                tracing::debug!(session = self.session.id, client = ?client_name.as_str(), "hello");
                match self.hello(protocol_version, features) {
                    Ok(response) => Ok(response),
                    Err(error) => {
                        self.session.reply_error(request_id, error);
                        return Flow::End;
                    }
                }
            }
            SessionRequest::Authenticate { credentials } => {
                return self.authenticate(request_id, &credentials).await;
            }
            SessionRequest::Attach { volume, tenant, read_only } => {
                match self.attach(&volume, tenant.as_ref(), read_only) {
                    Ok(()) => return Flow::Move { request_id },
                    Err(error) => Err(error),
                }
            }
            SessionRequest::Ping => Ok(SessionResponse::Pong),
            SessionRequest::Goodbye => {
                self.session.said_goodbye.store(true, std::sync::atomic::Ordering::Relaxed);
                self.stream.drain();
                Ok(SessionResponse::Farewell)
            }
        };
        match answer {
            Ok(response) => self.session.reply(request_id, &Response::Session(response)),
            Err(error) => self.session.reply_error(request_id, error),
        }
        Flow::Continue
    }

    fn hello(&mut self, version: u16, features: Features) -> Result<SessionResponse, WireError> {
        if version < OLDEST_PROTOCOL_VERSION {
            let detail = format!("the server speaks {OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}");
            return Err(WireError::new(ErrorCode::UnsupportedVersion, &detail));
        }
        self.greeted = true;
        Ok(SessionResponse::HelloOk {
            version: version.min(PROTOCOL_VERSION),
            features: features.common(Features::LEASES),
            server_epoch: self.shared.store.identity().epoch,
            limits: SERVER_LIMITS,
        })
    }

    async fn authenticate(&mut self, request_id: u64, credentials: &Credentials) -> Flow {
        if self.session.identity.get().is_some() {
            self.session.reply_error(request_id, ErrorCode::OutOfOrder);
            return Flow::Continue;
        }
        match self.shared.tenants.authenticate(credentials, self.peer) {
            Some(identity) => {
                let tenant = identity.tenant.as_ref().map(|(_, name)| name.clone());
                let response = SessionResponse::AuthOk { tenant, admin: identity.admin };
                let _ = self.session.identity.set(identity);
                self.stream.trust();
                self.session.reply(request_id, &Response::Session(response));
                Flow::Continue
            }
            None => {
                self.refusals += 1;
                tracing::warn!(
                    session = self.session.id,
                    refusals = self.refusals,
                    "credentials were refused"
                );
                tokio::time::sleep(REFUSAL_DELAY).await;
                self.session.reply_error(request_id, ErrorCode::NotAuthenticated);
                if self.refusals >= REFUSALS_MAX { Flow::End } else { Flow::Continue }
            }
        }
    }

    fn attach(&self, volume: &VolumeRef, tenant: Option<&Label>, read_only: bool) -> Result<(), WireError> {
        let identity: &Identity = self.session.identity.get().ok_or(ErrorCode::NotAuthenticated)?;
        if self.session.attached.get().is_some() {
            return Err(ErrorCode::OutOfOrder.into());
        }
        let (tenant, name) = self.shared.tenants.meant(identity, tenant)?;
        let id = self.shared.tenants.volume(tenant, volume)?;
        let attachment =
            self.shared.registry.attach(&self.shared, id).map_err(|unavailable| match unavailable {
                Unavailable::Unknown => ErrorCode::UnknownVolume,
                Unavailable::InUse => ErrorCode::Busy,
            })?;
        tracing::debug!(session = self.session.id, tenant = %name, subvolume = id, "attached");
        let budget = self.shared.tenants.budget(tenant);
        let _ = self.session.attached.set(Attached { attachment, read_only, budget });
        Ok(())
    }
}
