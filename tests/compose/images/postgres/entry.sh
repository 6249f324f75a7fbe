#!/usr/bin/env bash
# Stands in for the entry point of the image `postgres` where no image can be pulled: the variables and folders that
# docker-compose.yml uses, and no others.
set -euo pipefail

bin=$(echo /usr/lib/postgresql/*/bin)
export PATH=$bin:$PATH
user=${POSTGRES_USER:-postgres}
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username "$user" --pwfile "$POSTGRES_PASSWORD_FILE" --auth-local trust --auth-host scram-sha-256 \
        --encoding UTF8 --locale C.UTF-8 --pgdata "$PGDATA"
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl --wait --options "-c listen_addresses=''" start
    for file in /docker-entrypoint-initdb.d/*.sh; do
        POSTGRES_USER=$user "$file"
    done
    pg_ctl --wait --mode fast stop
fi
exec postgres -c "listen_addresses=*"
