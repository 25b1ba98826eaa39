{{/* Certificates: how pods come by them. Each process has a Secret of its own, RELEASE-tls-WHO, with ca.crt, tls.crt and tls.key, whoever
     makes it: fedstrata up (generated), cert-manager, or you (secret). docs/decisions/certificates-in-pods.md says why. */}}

{{/* The mode that is asked for. YAML reads a plain `off` as false. */}}
{{- define "fedstrata.tlsMode" -}}
{{- $mode := .Values.tls.mode -}}
{{- if kindIs "bool" $mode }}{{ $mode = "off" }}{{ end -}}
{{- if not $mode -}}
{{- fail "tls.mode says how pods prove who they are, and is not given. `fedstrata up` makes their certificates (generated); with helm alone set it to cert-manager, to secret for certificates that you make, or to off, where whoever is in the network may read and alter everything" -}}
{{- end -}}
{{- if and (ne $mode "cert-manager") .Values.tls.certManager.issuer.name }}{{ fail (printf "tls.certManager.issuer is given, and tls.mode is %s: set tls.mode to cert-manager, or leave the issuer out" $mode) }}{{ end -}}
{{- $mode -}}
{{- end }}

{{/* Do pods speak TLS? */}}
{{- define "fedstrata.tls" -}}
{{- if ne (include "fedstrata.tlsMode" .) "off" }}true{{ end -}}
{{- end }}

{{/* Whom the certificates are for: run and place of the release, since two namespaces may have a release of one name. */}}
{{- define "fedstrata.tlsDomain" -}}
{{ .Release.Name }}.{{ .Release.Namespace }}
{{- end }}

{{/* The Secret of a process: (dict "root" $ "who" "lps-0"). */}}
{{- define "fedstrata.tlsSecret" -}}
{{ .root.Release.Name }}-tls-{{ .who }}
{{- end }}

{{/* For how many LPSs there are certificates: as many as the run begins with, or may come to have. */}}
{{- define "fedstrata.tlsLpsCount" -}}
{{- $plan := fromJson (include "fedstrata.plan" .) -}}
{{- $given := .Values.tls.lps -}}
{{- if and (not (kindIs "invalid" $given)) (ne (toString $plan.lps) "auto") (lt (int $given) (int $plan.lps)) -}}
{{- fail (printf "tls.lps is %d, but experiment %s begins with %d LPSs, and one without a certificate cannot start. Set tls.lps to null, or to at least so many" (int $given) $plan.name (int $plan.lps)) -}}
{{- end -}}
{{- if not (kindIs "invalid" $given) }}{{ int $given -}}
{{- else if eq (toString $plan.lps) "auto" }}{{ min 16 (int $plan.devices) -}}
{{- else }}{{ int $plan.lps }}{{ end -}}
{{- end }}

{{/* Who of a tier has a certificate, as JSON: a list of {who, pod, names}. `pod` is the folder that its pod alone is shown. */}}
{{- define "fedstrata.tlsHolders" -}}
{{- $root := .root -}}
{{- $full := include "fedstrata.fullname" $root -}}
{{- $plan := fromJson (include "fedstrata.plan" $root) -}}
{{- $holders := list -}}
{{- if eq .component "lps" -}}
  {{- range $number := until (include "fedstrata.tlsLpsCount" $root | int) -}}
  {{- $holders = append $holders (dict "who" (printf "lps-%d" $number) "pod" (printf "%s-lps-%d" $full $number) "names" (list (printf "lps/lps-%d" $number))) -}}
  {{- end -}}
{{- else if eq $root.Values.device.kind "DaemonSet" -}}
  {{- range $plan.names -}}
  {{- $holders = append $holders (dict "who" (printf "device-%s" .) "pod" . "names" (list (printf "device/%s" .))) -}}
  {{- end -}}
{{- else -}}
  {{- $perPod := int $root.Values.device.devicesPerPod -}}
  {{- $last := sub (int $plan.devices) 1 | int -}}
  {{- range $ordinal := until (include "fedstrata.deviceReplicas" $root | int) -}}
  {{- $first := mul $ordinal $perPod | int -}}
  {{- $ends := list $first (min $last (sub (add $first $perPod) 1) | int) | uniq -}}
  {{- $ids := list -}}
  {{- range $ends -}}
  {{- $digits := toString . -}}
  {{- $width := max 3 (len (toString $last)) | int -}}
  {{- $ids = append $ids (printf "device-%s%s" (repeat (sub $width (len $digits) | int) "0") $digits) -}}
  {{- end -}}
  {{- $names := list (printf "device/%s" (join "_" $ids)) -}}
  {{- if $plan.names -}}
  {{- $names = list -}}
  {{- range slice $plan.names $first (add1 (last $ends) | int) }}{{ $names = append $names (printf "device/%s" .) }}{{ end -}}
  {{- end -}}
  {{- $holders = append $holders (dict "who" (printf "device-%d" $ordinal) "pod" (printf "%s-device-%d" $full $ordinal) "names" $names) -}}
  {{- end -}}
{{- end -}}
{{- dict "holders" $holders | toJson -}}
{{- end }}

{{/* The files of a Secret as processes read them; `in` is a folder with its slash: (dict "in" "pod/"). */}}
{{- define "fedstrata.tlsItems" -}}
- {key: ca.crt, path: {{ .in }}ca.pem}
- {key: tls.crt, path: {{ .in }}cert.pem}
- {key: tls.key, path: {{ .in }}key.pem}
{{- end }}

{{/* A process's own folder out of its tier's volume; nothing where the tier has no certificates: (dict "root" $ "component" "lps"). */}}
{{- define "fedstrata.tlsMount" -}}
{{- if include "fedstrata.hasTls" . }}
- name: tls
  mountPath: /tls
  readOnly: true
  {{- if and (has .component (list "lps" "device")) (not .root.Values.tls.follow) }}
  # A pod sees its own key, and not those of its tier's other pods.
  subPathExpr: {{ include "fedstrata.tlsFolder" . }}
  {{- end }}
{{- if has .component (list "gps" "lps" "device") }}
# Whose certificates count no more, as a whole volume: kubelet keeps it up to date whatever tls.follow says.
- name: revoked
  mountPath: /revoked
  readOnly: true
{{- end }}
{{- end }}
{{- end }}

{{/* A process's folder in its tier's volume. */}}
{{- define "fedstrata.tlsFolder" -}}
{{- ternary "$(FEDSTRATA_DEVICE_NAME)" "$(FEDSTRATA_POD_NAME)" (and (eq .component "device") (eq .root.Values.device.kind "DaemonSet")) -}}
{{- end }}

{{/* Where a process finds its certificate: in a volume that kubelet keeps up to date, or in what it was when the pod began. */}}
{{- define "fedstrata.tlsPath" -}}
/tls{{ if and (has .component (list "lps" "device")) .root.Values.tls.follow }}/{{ include "fedstrata.tlsFolder" . }}{{ end -}}
{{- end }}

{{- define "fedstrata.tlsVolume" -}}
{{- if include "fedstrata.hasTls" . }}
- name: tls
  {{- if has .component (list "lps" "device") }}
  projected:
    defaultMode: 0440
    sources:
      {{- range (fromJson (include "fedstrata.tlsHolders" .)).holders }}
      - secret:
          name: {{ include "fedstrata.tlsSecret" (dict "root" $.root "who" .who) }}
          items:
            {{- include "fedstrata.tlsItems" (dict "in" (printf "%s/" .pod)) | nindent 12 }}
      {{- end }}
  {{- else }}
  secret:
    secretName: {{ include "fedstrata.tlsSecret" (dict "root" .root "who" (ternary "gps" "operator" (eq .component "gps"))) }}
    defaultMode: 0440
    items:
      {{- include "fedstrata.tlsItems" (dict "in" "") | nindent 6 }}
  {{- end }}
{{- if has .component (list "gps" "lps" "device") }}
- name: revoked
  secret:
    secretName: {{ include "fedstrata.tlsSecret" (dict "root" .root "who" "revoked") }}
    # `fedstrata certs revoke` makes it, or you do, when there is somebody to revoke.
    optional: true
    defaultMode: 0440
{{- end }}
{{- end }}
{{- end }}

{{/* Does a tier have certificates to mount? One whose devices are all elsewhere has no pods. */}}
{{- define "fedstrata.hasTls" -}}
{{- if include "fedstrata.tls" .root -}}
{{- if has .component (list "gps" "run" "test") }}true{{ else if (fromJson (include "fedstrata.tlsHolders" .)).holders }}true{{ end -}}
{{- end -}}
{{- end }}

{{/* Refuses `generated` where nobody has made certificates; a render without Kubernetes cannot know. */}}
{{- define "fedstrata.checkTls" -}}
{{- if eq (include "fedstrata.tlsMode" .) "generated" -}}
{{- $name := include "fedstrata.tlsSecret" (dict "root" . "who" "gps") -}}
{{- $seen := lookup "v1" "Secret" .Release.Namespace "" -}}
{{- if and $seen (not (lookup "v1" "Secret" .Release.Namespace $name)) -}}
{{- fail (printf "tls.mode is generated, and namespace %s has no Secret %s: install with `fedstrata up`, which makes the certificates; with helm alone set tls.mode to cert-manager, secret or off" .Release.Namespace $name) -}}
{{- end -}}
{{- end -}}
{{- end }}
