#!/usr/bin/env bash
# One database and one role for each service, which can connect to no other's. Run once, when the volume is new.
set -euo pipefail

for name in orders payments gateway; do
    PASSWORD=$(cat "/run/hourglass/$name-password") psql --quiet --no-psqlrc --set ON_ERROR_STOP=1 --set "name=$name" \
        --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\getenv password PASSWORD
CREATE ROLE :"name" LOGIN PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE CONNECT, TEMPORARY ON DATABASE :"name" FROM PUBLIC;
SQL
done
