//! Paths for administrators: tokens, nodes, and the authority.

use crate::control::admission::JsonBody;
use crate::control::error::ApiError;
use crate::control::service::Service;
use crate::control::tokens::Caller;
use crate::control::types::{
    AuthorityAnswer, CordonRequest, JoinTokenRequest, NewJoinToken, NewToken, Refusal, Role, RotationRequest,
    TokenInfo, TokenRequest,
};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;
use tokio::task::block_in_place;

/// Tokens, without their secrets.
#[utoipa::path(
    get, path = "/v1/tokens",
    responses(
        (status = 200, description = "Those that this token could have made.", body = Vec<TokenInfo>),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
    )
)]
pub(super) async fn tokens(
    caller: Caller,
    State(service): State<Arc<Service>>,
) -> Result<Json<Vec<TokenInfo>>, ApiError> {
    caller.needs(Role::Admin)?;
    Ok(Json(service.tokens(&caller)))
}

/// Makes a token.
#[utoipa::path(
    post, path = "/v1/tokens", request_body = TokenRequest,
    responses(
        (status = 200, description = "The token, once.", body = NewToken),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
        (status = 421, description = "Another control plane takes changes; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn create_token(
    caller: Caller,
    State(service): State<Arc<Service>>,
    JsonBody(request): JsonBody<TokenRequest>,
) -> Result<Json<NewToken>, ApiError> {
    block_in_place(|| service.create_token(&caller, request)).map(Json)
}

/// Ends a token at once.
#[utoipa::path(
    delete, path = "/v1/tokens/{id}",
    params(("id" = String, Path, description = "Public part of the token.")),
    responses(
        (status = 204, description = "It is not valid any more."),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
        (status = 404, description = "There is no such token.", body = Refusal),
        (status = 421, description = "Another control plane takes changes; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn revoke_token(
    caller: Caller,
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    caller.needs(Role::Admin)?;
    block_in_place(|| service.revoke_token(&caller, &id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a token with which a machine becomes a node, once. For tokens of admins of the whole mesh.
#[utoipa::path(
    post, path = "/v1/join-tokens", request_body = JoinTokenRequest,
    responses(
        (status = 200, description = "The token, once.", body = NewJoinToken),
        (status = 400, description = "The request makes no sense.", body = Refusal),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
        (status = 421, description = "Another control plane takes changes; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn create_join_token(
    caller: Caller,
    State(service): State<Arc<Service>>,
    JsonBody(request): JsonBody<JoinTokenRequest>,
) -> Result<Json<NewJoinToken>, ApiError> {
    block_in_place(|| service.create_join_token(&caller, request)).map(Json)
}

/// Ends a node's membership: its stream, its endpoints, and its right to have anything signed. For tokens of admins of the whole mesh.
#[utoipa::path(
    delete, path = "/v1/nodes/{name}",
    params(("name" = String, Path, description = "Name of the node.")),
    responses(
        (status = 204, description = "It is no node any more."),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
        (status = 404, description = "There is no such node.", body = Refusal),
        (status = 421, description = "Another control plane takes changes; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn revoke_node(
    caller: Caller,
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    block_in_place(|| service.revoke_node(&caller, &name))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Cordons a node, or ends that. For tokens of admins of the whole mesh.
#[utoipa::path(
    post, path = "/v1/nodes/{name}/cordon", request_body = CordonRequest,
    params(("name" = String, Path, description = "Name of the node.")),
    responses(
        (status = 200, description = "It is so."),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
        (status = 404, description = "There is no such node.", body = Refusal),
        (status = 421, description = "Another control plane takes changes; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn cordon_node(
    caller: Caller,
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
    JsonBody(request): JsonBody<CordonRequest>,
) -> Result<Json<CordonRequest>, ApiError> {
    block_in_place(|| service.cordon_node(&caller, &name, &request))?;
    Ok(Json(request))
}

/// The authority of the mesh, its roots, and how far its replacement is. For tokens of the whole mesh.
#[utoipa::path(
    get, path = "/v1/authority",
    responses(
        (status = 200, description = "As it is now.", body = AuthorityAnswer),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn authority(
    caller: Caller,
    State(service): State<Arc<Service>>,
) -> Result<Json<AuthorityAnswer>, ApiError> {
    service.authority(&caller).map(Json)
}

/// Replaces the authority while the mesh runs, tries that, or goes back. It goes on after the answer. For tokens of admins of the whole mesh.
#[utoipa::path(
    post, path = "/v1/authority/rotation", request_body = RotationRequest,
    responses(
        (status = 200, description = "It has begun, or has changed.", body = AuthorityAnswer),
        (status = 400, description = "The request makes no sense.", body = Refusal),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 403, description = "The token does not allow it.", body = Refusal),
        (status = 409, description = "It does not fit to what is under way.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
        (status = 503, description = "The store does not answer, or the authority's file cannot be used.", body = Refusal),
    )
)]
pub(super) async fn rotate(
    caller: Caller,
    State(service): State<Arc<Service>>,
    JsonBody(request): JsonBody<RotationRequest>,
) -> Result<Json<AuthorityAnswer>, ApiError> {
    block_in_place(|| service.rotate(&caller, request)).map(Json)
}
