-- name: CreateUpload :exec
INSERT INTO upload (owner, name) VALUES ($1, $2);
